//! What one held request does next: a pure function of what is seen of its workspace.
//!
//! Owns the rules of wakes (`docs/gateway.md`, "Hold and wake"). Must not know clocks, the API server or connections: the
//! state-space test of operator and gateways runs this function against lagging caches, so it must see nothing else.
//!
//! A wake is a number and not a time. A request remembers the number of the wake that it relies on; `settledTransition` in
//! the status says up to which number the operator has answered, by a start or by a stop.

/// What the gateway's cache holds of a workspace, as far as waiting goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Workspace {
    /// Who decides whether it runs.
    pub demand: Demand,
    /// Whether the operator has decided that it is off: no start is under way and no pod is meant to be there.
    pub off: bool,
    /// `status.settledTransition`; `None` before the operator wrote one.
    pub settled: Option<i64>,
    /// Why no wake can help, if so.
    pub blocked: Option<Blocked>,
}

/// Who decides whether a workspace runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demand {
    /// Requests do, with wakes.
    Requests,
    /// Its spec wants it to run always: waiting is enough.
    Always,
    /// Its spec wants it stopped.
    Stopped,
}

/// Why a workspace cannot serve whatever the gateway does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// It is being deleted.
    Terminating,
    /// It waits for somebody to change something; the condition Stalled or the phase Failed says so.
    Stalled,
}

/// What the gateway's cache holds of the wake object, if that belongs to this workspace's UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wake {
    /// Whether the intent is Awake (else it is Stopped).
    pub awake: bool,
    /// Number of the last wake.
    pub counter: i64,
}

/// What the pod said when it was asked just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodAnswer {
    /// It is the expected pod and serves.
    Serves,
    /// No address, no connection, another pod, or a pod that is stopping: all the same.
    None,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Hand the request to the pod.
    Forward,
    /// Look again when something has changed, or after a moment.
    Wait,
    /// Rely on a wake that another request wrote.
    Adopt(i64),
    /// Write this number with intent Awake, on condition that the wake object is the one that was seen.
    Write(i64),
    /// Answer that it cannot be served.
    Refuse(Refusal),
}

/// Why a held request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Somebody stopped it; only an explicit start wakes it.
    Stopped,
    /// It is being deleted.
    Terminating,
    /// Its conditions say what somebody has to change.
    Stalled,
}

/// One step of the loop. `mine` is the number of the wake that this request relies on.
pub fn next(workspace: &Workspace, wake: Option<Wake>, mine: Option<i64>, answer: PodAnswer) -> Action {
    if answer == PodAnswer::Serves {
        return Action::Forward;
    }
    match workspace.blocked {
        Some(Blocked::Terminating) => return Action::Refuse(Refusal::Terminating),
        Some(Blocked::Stalled) => return Action::Refuse(Refusal::Stalled),
        None => {}
    }
    match workspace.demand {
        Demand::Stopped => return Action::Refuse(Refusal::Stopped),
        Demand::Always => return Action::Wait,
        Demand::Requests => {}
    }
    if wake.is_some_and(|wake| !wake.awake) {
        return Action::Refuse(Refusal::Stopped);
    }
    let counter = wake.map_or(0, |wake| wake.counter);
    let settled = workspace.settled.unwrap_or(0);
    // The wake object went back: it was deleted, or deleted and made anew. The wake of this request is lost.
    let mine = mine.filter(|mine| counter >= *mine);
    match mine {
        Some(mine) if !(workspace.off && settled >= mine) => Action::Wait,
        // A stop answered that wake, or there was none: rely on a newer one, or ask again.
        _ if counter > settled => Action::Adopt(counter),
        _ => Action::Write(counter.max(settled) + 1),
    }
}

/// The number that an explicit start or stop writes: above everything that was asked for or answered before.
pub fn explicit(workspace: &Workspace, wake: Option<Wake>) -> i64 {
    wake.map_or(0, |wake| wake.counter).max(workspace.settled.unwrap_or(0)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn off(settled: i64) -> Workspace {
        Workspace { demand: Demand::Requests, off: true, settled: Some(settled), blocked: None }
    }

    fn on(settled: i64) -> Workspace {
        Workspace { off: false, ..off(settled) }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as the function under test takes it")]
    const fn wake(counter: i64) -> Option<Wake> {
        Some(Wake { awake: true, counter })
    }

    fn step(workspace: &Workspace, wake: Option<Wake>, mine: Option<i64>) -> Action {
        next(workspace, wake, mine, PodAnswer::None)
    }

    #[test]
    fn whatever_else_is_seen_a_pod_that_serves_gets_the_request() {
        let stalled = Workspace { demand: Demand::Stopped, blocked: Some(Blocked::Stalled), ..off(3) };
        assert_eq!(next(&stalled, None, None, PodAnswer::Serves), Action::Forward);
    }

    #[test]
    fn the_first_request_writes_the_number_above_all_that_is_known_and_the_second_adopts_it() {
        assert_eq!(step(&off(3), None, None), Action::Write(4));
        assert_eq!(step(&off(3), wake(3), None), Action::Write(4));
        assert_eq!(step(&off(3), wake(2), None), Action::Write(4));
        assert_eq!(step(&off(3), wake(5), None), Action::Adopt(5));
        assert_eq!(step(&Workspace { settled: None, ..off(0) }, None, None), Action::Write(1));
    }

    #[test]
    fn a_request_that_relies_on_a_wake_waits_until_a_stop_answers_it() {
        assert_eq!(step(&off(3), wake(4), Some(4)), Action::Wait);
        assert_eq!(step(&on(4), wake(4), Some(4)), Action::Wait);
        assert_eq!(step(&off(4), wake(4), Some(4)), Action::Write(5));
        assert_eq!(step(&off(4), wake(6), Some(4)), Action::Adopt(6));
    }

    #[test]
    fn a_wake_object_that_went_back_is_written_again() {
        assert_eq!(step(&off(3), None, Some(7)), Action::Write(4));
        assert_eq!(step(&off(3), wake(4), Some(7)), Action::Adopt(4));
    }

    #[test]
    fn a_running_workspace_whose_pod_does_not_answer_is_woken_all_the_same() {
        assert_eq!(step(&on(3), wake(3), None), Action::Write(4));
    }

    #[test]
    fn a_spec_that_says_always_needs_no_wake_and_one_that_says_stopped_takes_none() {
        assert_eq!(step(&Workspace { demand: Demand::Always, ..off(3) }, None, None), Action::Wait);
        let stopped = Workspace { demand: Demand::Stopped, ..off(3) };
        assert_eq!(step(&stopped, None, None), Action::Refuse(Refusal::Stopped));
    }

    #[test]
    fn an_explicit_stop_holds_until_an_explicit_start() {
        let stopped = Some(Wake { awake: false, counter: 5 });
        assert_eq!(step(&off(5), stopped, Some(4)), Action::Refuse(Refusal::Stopped));
        assert_eq!(explicit(&off(5), stopped), 6);
    }

    #[test]
    fn what_needs_people_is_refused_at_once() {
        let blocked = |blocked| Workspace { blocked: Some(blocked), ..off(3) };
        assert_eq!(step(&blocked(Blocked::Stalled), wake(4), Some(4)), Action::Refuse(Refusal::Stalled));
        assert_eq!(step(&blocked(Blocked::Terminating), wake(4), Some(4)), Action::Refuse(Refusal::Terminating));
    }
}
