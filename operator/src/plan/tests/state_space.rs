//! Operator × two gateways × lagging caches: random walks through everything that may happen between a request and its pod,
//! with one deletion of the wake object, restarts and lost writes. Every request is served, no pod is created while the workspace is
//! off, and there is never a second pod. Each rule of the protocol is needed: without it a walk fails.
//!
//! The operator is [`plan`] itself, and the gateways' decisions are those of [`hold`]: what runs is what is tested.

use super::*;
use crate::{
    crd::{Intent, StartReason},
    gateway::hold::{self, Action},
};

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Operator: a status patch on condition of the version that was observed.
    StatusPrecondition,
    /// Operator: no pod before the cache holds the own last write.
    OwnWrites,
    /// Operator: a transition settles at the counter it saw.
    Settling,
    /// Operator: never below what was settled.
    NeverLower,
    /// Gateway (c): whoever reads a lower number than its own begins anew.
    ForgetLower,
    /// Gateway: a wake that a stop swallowed is issued again.
    IssueAgain,
}

/// Each of these is needed. That a new wake begins above what was settled, and is greater than both numbers, saves a detour: without it the
/// waiter finds its number settled and issues the next one.
const RULES: [Without; 6] = [
    Without::StatusPrecondition,
    Without::OwnWrites,
    Without::Settling,
    Without::NeverLower,
    Without::ForgetLower,
    Without::IssueAgain,
];

/// xorshift64*: small, and the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredWake {
    view: WakeView,
    version: u64,
}

#[derive(Clone, Debug)]
struct Gateway {
    status: AgentWorkspaceStatus,
    wake: Option<StoredWake>,
    /// A request is held.
    held: bool,
    /// The number of its wake.
    mine: Option<i64>,
}

struct World {
    without: Without,
    server: Observed,
    wake: Option<StoredWake>,
    version: u64,
    /// The operator's caches and what it remembers.
    cache: Observed,
    cached_status_version: u64,
    status_version: u64,
    own_write: u64,
    activity: Option<Activity>,
    leading_since: Timestamp,
    gateways: [Gateway; 2],
    /// The agent's own view.
    last_used: Timestamp,
    refuses_until: Timestamp,
    now: Timestamp,
    pods: u32,
    wake_deleted: bool,
    /// The caches of a leader that lost its Lease and has one write on the way.
    former: Option<(Observed, u64)>,
    /// The greatest number that a start has answered.
    answered: i64,
    broken: Option<&'static str>,
}

impl World {
    fn new(without: Without) -> Self {
        let mut server = asleep_from_the_start();
        server.leading_since = at(0);
        let status = server.workspace.status.clone();
        let gateway = Gateway { status, wake: None, held: false, mine: None };
        Self {
            without,
            cache: server.clone(),
            server,
            wake: None,
            version: 1,
            cached_status_version: 1,
            status_version: 1,
            own_write: 0,
            activity: None,
            leading_since: at(0),
            gateways: [gateway.clone(), gateway],
            last_used: at(0),
            refuses_until: at(0),
            now: at(1),
            pods: 0,
            wake_deleted: false,
            former: None,
            answered: 0,
            broken: None,
        }
    }

    fn happen(&mut self, dice: &mut Dice) {
        let gateway = usize::try_from(dice.roll(2)).expect("two gateways");
        match dice.roll(29) {
            0..=4 => self.reconcile(dice.roll(4)),
            5 | 6 => self.catch_up_status(),
            7 | 8 => self.cache.pod = self.server.pod.clone(),
            9 | 10 => self.cache.wake = self.wake.map(|wake| wake.view),
            11 => {
                // Another replica leads: it lists, and knows nothing else.
                self.former = Some((self.cache.clone(), self.cached_status_version));
                self.catch_up_operator();
                self.activity = None;
                self.leading_since = self.now;
            }
            12 | 13 => {
                self.gateways[gateway].held = true;
            }
            14..=17 => self.gateway(gateway),
            18 => self.gateways[gateway].status = self.server.workspace.status.clone(),
            19 => self.gateways[gateway].wake = self.wake,
            20 | 21 => self.pod_ready(),
            22 => self.pod_gone(),
            23 if !self.wake_deleted && self.wake.is_some() => {
                self.wake_deleted = true;
                self.wake = None;
            }
            24 => self.former_leader(),
            26 => self.explicit(dice.roll(2) == 0),
            25 => self.now = status::after(self.now, 61),
            _ => self.now = status::after(self.now, 2),
        }
    }

    /// The status that the former leader decided on before it lost its Lease arrives now.
    fn former_leader(&mut self) {
        let Some((cache, version)) = self.former.take() else { return };
        if version != self.status_version && self.without != Without::StatusPrecondition {
            return;
        }
        if let Some(patch) = super::decide(&cache, self.now).status {
            let status = round_trip(&patch.status);
            self.started(&status, cache.wake.map_or(0, |wake| wake.counter));
            self.server.workspace.status = status;
            self.status_version += 1;
        }
    }

    /// A start for a wake answers a number that no start has answered before.
    fn started(&mut self, status: &AgentWorkspaceStatus, counter: i64) {
        let woken = status.last_start.as_ref().is_some_and(|start| start.reason == StartReason::Wake);
        if woken && !run_state::is_on(&self.server.workspace.status) && run_state::is_on(status) {
            if counter <= self.answered {
                self.broken = Some("one wake started it twice");
            }
            self.answered = self.answered.max(counter);
        }
    }

    /// Somebody presses stop, or start.
    fn explicit(&mut self, stop: bool) {
        let settled = self.server.workspace.status.settled_transition.unwrap_or(0);
        let counter = self.wake.map_or(0, |wake| wake.view.counter).max(settled) + 1;
        let intent = if stop { Intent::Stopped } else { Intent::Awake };
        self.version += 1;
        self.wake = Some(StoredWake { view: WakeView { intent, counter }, version: self.version });
    }

    fn catch_up_status(&mut self) {
        self.cache.workspace = self.server.workspace.clone();
        self.cached_status_version = self.status_version;
    }

    fn catch_up_operator(&mut self) {
        self.catch_up_status();
        self.cache.pod = self.server.pod.clone();
        self.cache.wake = self.wake.map(|wake| wake.view);
    }

    fn agent_accepts(&mut self, seconds: i64) -> bool {
        let idle = status::seconds_between(self.last_used, self.now) >= seconds;
        if idle {
            self.refuses_until = status::after(self.now, HOLD_SECONDS);
        }
        idle
    }

    /// One pass: at most four decisions; `lost` of four passes lose their second write, as a crash does.
    fn reconcile(&mut self, lost: u64) {
        for round in 0..4 {
            let plan = self.decide();
            let moved = plan.status.is_some() || plan.create_pod.is_some() || plan.delete_pod.is_some();
            let wrote_status = plan.status.is_some();
            if !self.act(plan) || !moved || (lost == 0 && round == 0) {
                return;
            }
            // Mostly the answer to a write is in the cache at once; the watch may be as slow as it likes otherwise.
            if wrote_status && lost < 2 {
                self.catch_up_status();
            }
        }
    }

    fn decide(&mut self) -> Plan {
        let mut observed = self.cache.clone();
        let behind = self.cached_status_version < self.own_write;
        observed.own_write_pending = behind && self.without != Without::OwnWrites;
        observed.activity.clone_from(&self.activity);
        observed.leading_since = self.leading_since;
        observed.spread_seconds = 1;
        for _ in 0..4 {
            let plan = super::decide(&observed, self.now);
            for question in &plan.look_up {
                match question {
                    LookUp::Drain(question) => {
                        let known =
                            matches!(&self.server.pod, Seen::Ours(pod) if pod.uid == question.pod_uid && pod.ready);
                        let answer = if !known {
                            Answer::Unknown
                        } else if self.agent_accepts(question.if_idle_seconds) {
                            Answer::Accepted
                        } else {
                            let idle_seconds = status::seconds_between(self.last_used, self.now);
                            Answer::InUse { busy: false, idle_seconds, busy_seconds: 0 }
                        };
                        let pod_uid = question.pod_uid.clone();
                        self.activity = Some(Activity { pod_uid, asked_at: self.now, answer });
                        observed.activity.clone_from(&self.activity);
                    }
                    LookUp::AgentReadiness { pod_uid, .. } => {
                        observed.agent_readiness = Some(healthy(pod_uid, self.now));
                    }
                    LookUp::PodEvents { .. } => observed.pod_events = Some(Vec::new()),
                    LookUp::Live(_) => observed.pod = self.server.pod.clone(),
                    LookUp::Node { .. } => observed.node = Some(NodeState::Ready),
                }
            }
            if plan.look_up.is_empty() {
                return plan;
            }
        }
        panic!("a decision that keeps asking")
    }

    /// Writes; false when the pass is over.
    fn act(&mut self, plan: Plan) -> bool {
        if let Some(patch) = plan.status {
            if self.cached_status_version != self.status_version && self.without != Without::StatusPrecondition {
                return false;
            }
            let mut status = round_trip(&patch.status);
            let (before, counter) = (&self.cache.workspace.status, self.cache.wake.map_or(0, |wake| wake.counter));
            match self.without {
                Without::Settling => status.settled_transition = before.settled_transition,
                Without::NeverLower if status.phase != before.phase => status.settled_transition = Some(counter),
                _ => {}
            }
            self.started(&status, counter);
            self.server.workspace.status = status;
            self.status_version += 1;
            self.own_write = self.status_version;
            return true;
        }
        if plan.create_pod.is_some() {
            if matches!(self.server.pod, Seen::Ours(_)) {
                self.cache.pod = self.server.pod.clone(); // 409, read live
                return true;
            }
            if !run_state::is_on(&self.server.workspace.status) {
                self.broken = Some("a pod was created while off");
            }
            self.pods += 1;
            self.server.pod = Seen::Ours(pending_pod(&self.server, &format!("pod-{}", self.pods), self.now));
            self.cache.pod = self.server.pod.clone();
        }
        if let Some(deletion) = plan.delete_pod
            && let Seen::Ours(pod) = &mut self.server.pod
            && pod.uid == deletion.uid
        {
            pod.deleting = true;
            pod.ready = false;
            self.cache.pod = self.server.pod.clone();
        }
        true
    }

    fn pod_ready(&mut self) {
        if let Seen::Ours(pod) = &mut self.server.pod
            && !pod.deleting
            && !pod.ready
        {
            *pod = ready(pod.clone(), self.now);
            (self.last_used, self.refuses_until) = (self.now, self.now);
        }
    }

    fn pod_gone(&mut self) {
        if matches!(&self.server.pod, Seen::Ours(pod) if pod.deleting) {
            self.server.pod = Seen::Missing;
        }
    }

    fn pod_answers(&self, gateway: &Gateway) -> bool {
        let Some(expected) = &gateway.status.pod else { return false };
        let Seen::Ours(pod) = &self.server.pod else { return false };
        pod.uid == expected.uid && pod.ready && !pod.deleting && self.now >= self.refuses_until
    }

    /// One turn of the loop of a held request.
    fn gateway(&mut self, index: usize) {
        let mut gateway = self.gateways[index].clone();
        if !gateway.held {
            return;
        }
        match self.decision(&gateway) {
            Action::Forward => {
                self.last_used = self.now;
                (gateway.held, gateway.mine) = (false, None);
            }
            // 503: only an explicit start begins it again.
            Action::Refuse(_) => (gateway.held, gateway.mine) = (false, None),
            Action::Adopt(number) => gateway.mine = Some(number),
            Action::Write(number) => self.write_wake(&mut gateway, number),
            Action::Wait => {}
        }
        self.gateways[index] = gateway;
    }

    /// What [`hold::next`] says; a rule is left out by showing it a world in which the rule does not apply.
    fn decision(&self, gateway: &Gateway) -> Action {
        let mut seen = hold::Workspace {
            demand: hold::Demand::Requests,
            off: !run_state::is_on(&gateway.status),
            settled: gateway.status.settled_transition,
            blocked: None,
        };
        let mut wake = gateway
            .wake
            .map(|wake| hold::Wake { awake: wake.view.intent == Intent::Awake, counter: wake.view.counter });
        if let Some(mine) = gateway.mine {
            let lower = wake.is_none_or(|wake| wake.counter < mine);
            if self.without == Without::ForgetLower && lower {
                wake = Some(hold::Wake { awake: wake.is_none_or(|wake| wake.awake), counter: mine });
            }
            if self.without == Without::IssueAgain {
                seen.off = false;
            }
        }
        let answer = if self.pod_answers(gateway) { hold::PodAnswer::Serves } else { hold::PodAnswer::None };
        hold::next(&seen, wake, gateway.mine, answer)
    }

    fn write_wake(&mut self, gateway: &mut Gateway, number: i64) {
        let read = gateway.wake.map(|wake| wake.version);
        if self.wake.map(|wake| wake.version) != read {
            return; // 409; its watch brings the newer object
        }
        self.version += 1;
        let view = WakeView { intent: Intent::Awake, counter: number };
        self.wake = Some(StoredWake { view, version: self.version });
        gateway.wake = self.wake;
        gateway.mine = Some(number);
    }

    /// Everybody behaves, and no time is lost: whoever is held is served.
    fn end_well(&mut self) {
        for _ in 0..60 {
            if self.gateways.iter().all(|gateway| !gateway.held) {
                return;
            }
            self.catch_up_operator();
            self.reconcile(1);
            self.pod_gone();
            self.catch_up_operator();
            self.reconcile(1);
            self.pod_ready();
            self.catch_up_operator();
            self.reconcile(1);
            for index in 0..2 {
                self.gateways[index].status = self.server.workspace.status.clone();
                self.gateways[index].wake = self.wake;
                self.gateway(index);
            }
            self.now = status::after(self.now, 2);
        }
        if self.gateways.iter().any(|gateway| gateway.held) {
            self.broken = self.broken.or(Some("a request was never served"));
        }
    }
}

/// A workspace that nobody has used yet.
fn asleep_from_the_start() -> Observed {
    let spec = json!({
        "runPolicy": "OnDemand", "lifecycle": {"idleTimeoutSeconds": 60, "startOnCreate": "OnFirstRequest"},
    });
    let mut observed = with_children(fresh(spec));
    step(&mut observed, at(0));
    observed
}

/// The first of `walks` that breaks a promise.
fn explore(without: Without, walks: u64) -> Option<(u64, &'static str)> {
    (1..=walks).find_map(|seed| {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut world = World::new(without);
        for _ in 0..60 {
            world.happen(&mut dice);
        }
        world.end_well();
        world.broken.map(|broken| (seed, broken))
    })
}

/// 150 walks of 60 steps and a good end take some seconds in a debug build; `STATE_SPACE_WALKS` asks for more.
fn walks() -> u64 {
    std::env::var("STATE_SPACE_WALKS").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

#[test]
fn no_request_is_lost_and_no_pod_is_created_while_off() {
    assert_eq!(explore(Without::Nothing, walks()), None);
}

#[test]
fn each_rule_is_needed() {
    let superfluous = |rule: &Without| explore(*rule, 600).is_none();
    let found: Vec<Without> = RULES.into_iter().filter(superfluous).collect();
    assert_eq!(found, [], "nothing breaks without these");
}
