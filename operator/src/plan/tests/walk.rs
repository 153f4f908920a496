//! Random walks: a user, a kubelet, a node and a lagging cache do what they like between decisions; whatever the order,
//! the promises hold, and in the end the wanted state is reached and nothing is written any more.

use proptest::prelude::*;

use super::*;
use crate::crd::{Phase, RunPolicy};

/// One thing that happens.
#[derive(Clone, Debug)]
enum Happening {
    /// The operator decides and acts; the writes before the n-th succeed, then it crashes.
    Reconcile { crash_after: Option<usize> },
    /// The operator's caches catch up.
    CatchUp,
    /// The cache of pods alone catches up.
    CatchUpPods,
    /// Time passes.
    Wait(i64),
    /// The kubelet makes the pod Ready.
    PodReady,
    /// The pod loses readiness.
    PodUnready,
    /// The agent ends.
    PodEnds(i32),
    /// Somebody deletes the pod.
    PodDeleted { disruption: bool },
    /// The kubelet ends a pod that is being deleted.
    PodGone,
    /// The user says on or off.
    Run(bool),
    /// The user changes the image.
    Image(u8),
    /// The user changes the failure policy.
    Ignore(bool),
    /// Somebody deletes the Service.
    ServiceDeleted,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => proptest::option::weighted(0.2, 0_usize..4).prop_map(|crash_after| Happening::Reconcile { crash_after }),
        6 => Just(Happening::CatchUp),
        2 => Just(Happening::CatchUpPods),
        3 => (1_i64..400).prop_map(Happening::Wait),
        3 => Just(Happening::PodReady),
        1 => Just(Happening::PodUnready),
        2 => prop_oneof![Just(0), Just(1), Just(78), Just(137)].prop_map(Happening::PodEnds),
        1 => any::<bool>().prop_map(|disruption| Happening::PodDeleted { disruption }),
        3 => Just(Happening::PodGone),
        2 => any::<bool>().prop_map(Happening::Run),
        1 => (0_u8..3).prop_map(Happening::Image),
        1 => any::<bool>().prop_map(Happening::Ignore),
        1 => Just(Happening::ServiceDeleted),
    ]
}

/// The API server, and what the operator's caches hold of it.
struct World {
    server: Observed,
    /// Version of workspace and pod on the server, in the cache, and of the operator's own last write.
    version: u64,
    cached_version: u64,
    own_write: u64,
    cache: Observed,
    now: Timestamp,
    pods: u32,
    status_writes: u32,
}

impl World {
    fn new() -> Self {
        let server = fresh(json!({"owner": {"user": "alice"}}));
        Self {
            cache: server.clone(),
            server,
            version: 1,
            cached_version: 1,
            own_write: 0,
            now: at(0),
            pods: 0,
            status_writes: 0,
        }
    }

    fn changed(&mut self) {
        self.version += 1;
    }

    fn wrote(&mut self) {
        self.changed();
        self.own_write = self.version;
    }

    fn catch_up(&mut self) {
        self.cache = self.server.clone();
        self.cached_version = self.version;
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Reconcile { crash_after } => self.reconcile(*crash_after),
            Happening::CatchUp => self.catch_up(),
            // Pods may be newer than the workspace; what the operator wrote itself is still waited for.
            Happening::CatchUpPods => self.cache.pod = self.server.pod.clone(),
            Happening::Wait(seconds) => self.now = status::after(self.now, *seconds),
            Happening::Run(on) => {
                self.edit(|spec| spec.run_policy = Some(if *on { RunPolicy::Always } else { RunPolicy::Stopped }));
            }
            Happening::Image(number) => self.edit(|spec| {
                spec.agent =
                    Some(crate::crd::Agent { image: Some(format!("image-{number}")), ..crate::crd::Agent::default() });
            }),
            Happening::Ignore(ignore) => self.edit(|spec| {
                let policy =
                    if *ignore { crate::crd::FailurePolicy::Ignore } else { crate::crd::FailurePolicy::Recreate };
                spec.lifecycle =
                    Some(crate::crd::Lifecycle { failure_policy: Some(policy), ..crate::crd::Lifecycle::default() });
            }),
            Happening::ServiceDeleted => {
                self.server.service = Seen::Missing;
                self.changed();
            }
            Happening::PodGone => {
                if matches!(&self.server.pod, Seen::Ours(pod) if pod.deleting) {
                    self.server.pod = Seen::Missing;
                    self.changed();
                }
            }
            pod => self.pod_happens(pod),
        }
    }

    fn edit(&mut self, change: impl FnOnce(&mut crate::crd::AgentWorkspaceSpec)) {
        let before = self.server.workspace.spec.clone();
        change(&mut self.server.workspace.spec);
        if self.server.workspace.spec != before {
            self.server.workspace.generation += 1;
            self.changed();
        }
    }

    fn pod_happens(&mut self, happening: &Happening) {
        let now = self.now;
        let Seen::Ours(pod) = &mut self.server.pod else { return };
        let over = matches!(pod.phase, PodPhase::Failed | PodPhase::Succeeded);
        match happening {
            Happening::PodReady if !over && !pod.deleting => *pod = ready(pod.clone(), now),
            Happening::PodUnready if !over => pod.ready = false,
            Happening::PodEnds(code) if !over => *pod = ended(pod.clone(), *code, "Error", "output"),
            Happening::PodDeleted { disruption } => {
                pod.deleting = true;
                pod.disruption = disruption.then(|| Disruption { reason: None, message: "preempted".to_owned() });
            }
            _ => return,
        }
        self.changed();
    }

    /// Observes from the cache, plans (answering what is asked), and acts on the server as the effects do.
    fn reconcile(&mut self, crash_after: Option<usize>) {
        let mut observed = self.cache.clone();
        observed.own_write_pending = self.cached_version < self.own_write;
        let mut plan = decide(&observed, self.now);
        for _ in 0..3 {
            for question in std::mem::take(&mut plan.look_up) {
                match question {
                    LookUp::Live(_) => panic!("everything is known here"),
                    LookUp::Node { .. } | LookUp::Drain(_) => panic!("no node, nothing on demand"),
                    LookUp::PodEvents { .. } => observed.pod_events = Some(Vec::new()),
                    LookUp::AgentReadiness { pod_uid, .. } => {
                        observed.agent_readiness = Some(healthy(&pod_uid, self.now));
                    }
                }
                plan = decide(&observed, self.now);
            }
        }
        assert_eq!(plan.look_up, [], "each question is asked once");
        assert_eq!(decide(&observed, self.now), plan, "the same decision twice");
        self.check(&observed, &plan);
        self.act(plan, crash_after);
    }

    fn check(&self, observed: &Observed, plan: &Plan) {
        if plan.create_pod.is_some() {
            assert!(!matches!(observed.pod, Seen::Ours(_)), "a second pod");
            assert_eq!(
                observed.workspace.spec.run_policy.unwrap_or(RunPolicy::Always),
                RunPolicy::Always,
                "a pod while off"
            );
            assert!(plan.status.is_none(), "a transition is written before its pod");
        }
        if let Some(deletion) = &plan.delete_pod {
            assert!(plan.status.is_none(), "a transition is written before the deletion");
            assert!(matches!(observed.workspace.status.phase, Some(Phase::Stopping | Phase::Starting)));
            assert!(matches!(&observed.pod, Seen::Ours(pod) if pod.uid == deletion.uid));
        }
        if let Some(patch) = &plan.status {
            let status = round_trip(&patch.status);
            assert_eq!(status, patch.status, "what is written is what is read back");
            let mut after = observed.clone();
            after.workspace.status = status;
            assert_eq!(decide(&after, self.now).status, None, "a status is written once");
        }
        if observed.own_write_pending {
            assert_eq!((&plan.status, &plan.create_pod, &plan.delete_pod, plan.apply.len()), (&None, &None, &None, 0));
        }
    }

    fn act(&mut self, plan: Plan, crash_after: Option<usize>) {
        let mut writes = 0;
        let crashed = |writes: &mut usize| {
            *writes += 1;
            crash_after.is_some_and(|limit| *writes > limit)
        };
        if let Some(patch) = plan.status {
            if crashed(&mut writes) || self.cached_version != self.version {
                return; // 409: the cache is older than the server
            }
            self.server.workspace.status = patch.status;
            self.status_writes += 1;
            self.wrote();
        }
        for child in plan.apply {
            if crashed(&mut writes) {
                return;
            }
            let known = with_children(self.cache.clone());
            match child {
                Child::Claim(_) => self.server.claim = known.claim,
                Child::Service(_) => self.server.service = known.service,
                Child::NetworkPolicy(_) => self.server.policy = known.policy,
            }
        }
        if plan.create_pod.is_some() && !crashed(&mut writes) && !matches!(self.server.pod, Seen::Ours(_)) {
            assert_eq!(self.server.workspace.status.phase, Some(Phase::Starting), "a pod that was not announced");
            self.pods += 1;
            let pod = pending_pod(&self.cache, &format!("pod-{}", self.pods), self.now);
            self.server.pod = Seen::Ours(pod);
            self.wrote();
        }
        if let Some(deletion) = plan.delete_pod
            && !crashed(&mut writes)
        {
            let fulfilled = match &mut self.server.pod {
                Seen::Ours(pod) if pod.uid == deletion.uid => {
                    pod.deleting = true;
                    true
                }
                _ => false,
            };
            if fulfilled {
                self.wrote();
            }
        }
    }

    /// Everybody behaves now: within a bounded number of rounds nothing happens any more.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..60 {
            let before = self.version;
            self.catch_up();
            self.reconcile(None);
            self.happen(&Happening::PodGone);
            if matches!(&self.server.pod, Seen::Ours(pod) if !pod.ready) {
                self.happen(&Happening::PodReady);
            }
            // longer than the longest pause
            self.happen(&Happening::Wait(400));
            quiet = if self.version == before { quiet + 1 } else { 0 };
            if quiet == 3 {
                return;
            }
        }
        panic!("not settled after 60 rounds: {:?}", self.server.workspace.status);
    }
}

/// 30 walks of up to 60 happenings take about a second; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_wanted_state_is_reached_and_then_nothing_is_written(
        happenings in proptest::collection::vec(happening(), 0..60)
    ) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen(happening);
        }
        world.settle();
        let status = &world.server.workspace.status;
        let spec = &world.server.workspace.spec;
        let ignore = spec.lifecycle.as_ref().and_then(|one| one.failure_policy) == Some(crate::crd::FailurePolicy::Ignore);
        let wanted: &[Phase] = match (spec.run_policy, ignore) {
            (Some(RunPolicy::Stopped), _) => &[Phase::Stopped],
            (_, true) => &[Phase::Running, Phase::Failed],
            _ => &[Phase::Running],
        };
        prop_assert!(status.phase.is_some_and(|phase| wanted.contains(&phase)), "{status:?}");
        prop_assert_eq!(status.phase == Some(Phase::Stopped), !matches!(world.server.pod, Seen::Ours(_)));
        prop_assert_eq!(status.observed_generation, Some(world.server.workspace.generation));
        let writes = world.status_writes;
        for _ in 0..5 {
            world.reconcile(None);
            world.catch_up();
            world.happen(&Happening::Wait(1000));
        }
        prop_assert_eq!(world.status_writes, writes, "a settled workspace costs no write");
    }
}
