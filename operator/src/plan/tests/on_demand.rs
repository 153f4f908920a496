//! On demand: sleep, wake, schedules, the longest run, expiry.

use super::*;
use crate::crd::{Intent, Phase, StartReason, StopReason};

/// Created at [`start`], with an idle timeout of a minute unless the lifecycle says otherwise.
#[expect(clippy::needless_pass_by_value, reason = "tests hand over literals")]
fn on_demand(lifecycle: Value) -> Value {
    let mut all = json!({"idleTimeoutSeconds": 60});
    all.as_object_mut().expect("an object").extend(lifecycle.as_object().expect("an object").clone());
    json!({"runPolicy": "OnDemand", "lifecycle": all})
}

#[expect(clippy::unnecessary_wraps, reason = "as an observation has it")]
fn wake(intent: Intent, counter: i64) -> Option<WakeView> {
    Some(WakeView { intent, counter })
}

fn answered(observed: &mut Observed, second: i64, answer: Answer) {
    observed.activity = Some(Activity { pod_uid: "pod-1".to_owned(), asked_at: at(second), answer });
    observed.agent_readiness = Some(healthy("pod-1", at(second)));
}

fn question(if_idle_seconds: i64) -> Vec<LookUp> {
    let (pod_uid, ip) = ("pod-1".to_owned(), "10.1.2.3".to_owned());
    vec![LookUp::Drain(DrainQuestion { pod_uid, ip, if_idle_seconds })]
}

/// A workspace that was put to sleep after its wakes up to `settled`.
fn asleep(lifecycle: Value, settled: i64) -> Observed {
    let mut observed = running(on_demand(lifecycle));
    observed.wake = wake(Intent::Awake, settled);
    answered(&mut observed, 62, Answer::Accepted);
    step(&mut observed, at(62));
    observed.pod = Seen::Missing;
    step(&mut observed, at(63));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Sleeping));
    assert_eq!(observed.workspace.status.settled_transition, Some(settled));
    observed
}

fn started(observed: &mut Observed, second: i64) -> Option<StartReason> {
    let plan = decide(observed, at(second));
    let status = plan.status?.status;
    (status.phase == Some(Phase::Starting)).then(|| status.last_start.expect("a start").reason)
}

#[test]
fn an_idle_agent_is_asked_at_the_deadline_and_stopped_on_its_word() {
    let mut observed = running(on_demand(json!({})));
    assert_eq!(decide(&observed, at(29)).look_up, [], "not yet");
    assert_eq!(activity_deadline(&observed, 29), status::after(status::seconds(at(2)).0, 60));
    assert_eq!(decide(&observed, at(62)).look_up, question(60));
    answered(&mut observed, 62, Answer::Accepted);
    let plan = step(&mut observed, at(62));
    assert_eq!(events(&plan), ["Normal StoppedIdle"]);
    assert_eq!((plan.delete_pod, plan.drain), (None, None), "the status comes first");
    let status = observed.workspace.status.clone();
    assert_eq!((status.phase, status.pod), (Some(Phase::Stopping), None));
    assert_eq!(status.last_stop.expect("a stop").reason, StopReason::Idle);
    assert_eq!(status.last_activity_time, Some(status::seconds(at(2))));
    let plan = decide(&observed, at(62));
    assert_eq!(plan.delete_pod.expect("a deletion").uid, "pod-1");
    observed.pod = Seen::Missing;
    step(&mut observed, at(70));
    let ready = "Ready=True/Sleeping".to_owned();
    assert!(conditions(&observed.workspace.status).contains(&ready));
    assert_eq!(decide(&observed, at(71)), Plan::default(), "asleep, nothing is asked or written");
}

#[test]
fn an_agent_in_use_is_asked_again_when_it_can_be_idle_at_the_earliest() {
    let mut observed = running(on_demand(json!({})));
    let next = |answer| {
        let mut observed = observed.clone();
        answered(&mut observed, 62, answer);
        let plan = decide(&observed, at(62));
        assert_eq!((plan.status, plan.look_up), (None, Vec::new()));
        activity_deadline(&observed, 62)
    };
    assert_eq!(next(Answer::InUse { busy: false, idle_seconds: 20, busy_seconds: 0 }), at(102));
    assert_eq!(next(Answer::InUse { busy: true, idle_seconds: 0, busy_seconds: 50 }), at(122));
    answered(&mut observed, 62, Answer::InUse { busy: false, idle_seconds: 20, busy_seconds: 0 });
    assert_eq!(decide(&observed, at(102)).look_up, question(60));
}

#[test]
fn work_without_a_pause_keeps_it_up_for_max_busy_and_no_longer() {
    let mut observed = running(on_demand(json!({"maxBusySeconds": 100})));
    answered(&mut observed, 62, Answer::InUse { busy: true, idle_seconds: 0, busy_seconds: 60 });
    assert_eq!(decide(&observed, at(62)).requeue_at, Some(at(102)));
    assert_eq!(decide(&observed, at(102)).look_up, question(60));
    answered(&mut observed, 102, Answer::InUse { busy: true, idle_seconds: 0, busy_seconds: 100 });
    step(&mut observed, at(102));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Stopping));
    let drain = decide(&observed, at(102)).drain.expect("its turns get their time");
    assert_eq!(drain.grace_seconds, 55);
}

#[test]
fn silence_counts_as_busy_and_is_reported() {
    let mut observed = running(on_demand(json!({"maxBusySeconds": 200})));
    answered(&mut observed, 62, Answer::Unknown);
    let plan = step(&mut observed, at(62));
    assert_eq!(events(&plan), ["Warning ActivityUnknown"]);
    assert_eq!(activity_deadline(&observed, 62), at(122));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Running));
    assert!(conditions(&observed.workspace.status).contains(&"ActivityUnknown=True/ActivityUnknown".to_owned()));
    answered(&mut observed, 122, Answer::Unknown);
    let again = decide(&observed, at(122));
    assert_eq!((again.status, again.requeue_at), (None, Some(at(182))), "said once");
    let mut answering = observed.clone();
    answered(&mut answering, 182, Answer::InUse { busy: false, idle_seconds: 5, busy_seconds: 0 });
    step(&mut answering, at(182));
    assert!(!conditions(&answering.workspace.status).iter().any(|one| one.starts_with("ActivityUnknown")));
    // The bound passes: it is stopped without its word, unless that many are silent that it must be the network.
    answered(&mut observed, 250, Answer::Unknown);
    let mut paused = observed.clone();
    paused.idle_stops_paused = true;
    assert_eq!(decide(&paused, at(263)).status, None);
    step(&mut observed, at(263));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Stopping));
}

/// A start that was asked for at the creation, with 100 s for itself and 60 s of idleness after them.
fn starting() -> Observed {
    let mut observed = fresh(on_demand(json!({"startTimeoutSeconds": 100})));
    step(&mut observed, at(0));
    let mut observed = with_children(observed);
    observed.pod_events = Some(Vec::new());
    observed
}

#[test]
fn a_start_that_never_succeeds_ends_when_its_time_and_the_idle_time_are_over() {
    let mut observed = starting();
    observed.pod = Seen::Ours(pending_pod(&observed, "pod-1", at(1)));
    step(&mut observed, at(120));
    assert_eq!(
        message(&observed.workspace.status, ConditionType::Stalled).split(':').next(),
        Some("the pod was not ready within 100 s (spec.lifecycle.startTimeoutSeconds)")
    );
    assert_eq!(decide(&observed, at(159)), Plan { requeue_at: Some(at(160)), ..Plan::default() });
    let plan = step(&mut observed, at(160));
    assert_eq!(events(&plan), ["Normal StoppedIdle"]);
    let stop = observed.workspace.status.last_stop.clone().expect("a stop");
    assert_eq!((observed.workspace.status.phase, stop.reason), (Some(Phase::Stopping), StopReason::Idle));
    observed.pod = Seen::Missing;
    step(&mut observed, at(161));
    assert_eq!(conditions(&observed.workspace.status)[0], "Ready=True/Sleeping");
    // The next request has all of the time again.
    observed.wake = wake(Intent::Awake, 1);
    assert_eq!(started(&mut observed, 200), Some(StartReason::Wake));
    step(&mut observed, at(200));
    assert_eq!(decide(&observed, at(359)).status, None);
}

#[test]
fn a_start_that_fails_again_and_again_ends_as_soon() {
    let mut observed = starting();
    for (round, second) in [(1, 0), (2, 5), (3, 15), (4, 35), (5, 75), (6, 155)] {
        let pod = pending_pod(&observed, &format!("pod-{round}"), at(second));
        observed.pod = Seen::Ours(ended(pod, 1, "Error", "boom"));
        step(&mut observed, at(second));
        let failures = observed.workspace.status.last_start.as_ref().and_then(|start| start.failures);
        assert_eq!(failures, Some(round));
    }
    assert_eq!(decide(&observed, at(159)), Plan { requeue_at: Some(at(160)), ..Plan::default() });
    step(&mut observed, at(160));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Stopping));
}

#[test]
fn an_acceptance_that_was_not_acted_on_in_time_is_asked_for_again() {
    let mut observed = running(on_demand(json!({})));
    answered(&mut observed, 62, Answer::Accepted);
    assert_eq!(decide(&observed, at(68)).look_up, question(60));
}

#[test]
fn after_a_restart_of_the_operator_idle_time_is_the_agents_and_not_lost() {
    let mut observed = running(on_demand(json!({"idleTimeoutSeconds": 1800})));
    observed.leading_since = at(1000);
    let first = decide(&observed, at(1001)).requeue_at.expect("a question");
    assert!(first > at(1000) && first <= at(1061), "{first}");
    assert_eq!(decide(&observed, at(1061)).look_up, question(1800), "spread over a minute");
    answered(&mut observed, 1061, Answer::InUse { busy: false, idle_seconds: 1059, busy_seconds: 0 });
    observed.agent_readiness = Some(healthy("pod-1", at(1061)));
    assert_eq!(activity_deadline(&observed, 1061), at(1061 + 741));
}

/// When the agent is asked next, other deadlines apart.
fn activity_deadline(observed: &Observed, second: i64) -> Timestamp {
    let life = crate::plan::life::Life::parse(&observed.workspace.spec).expect("a life");
    match run_state::step(&life, observed, at(second)) {
        run_state::Step::Run(run) => run.again.expect("a deadline"),
        run_state::Step::Ask(question) => panic!("{question:?}"),
    }
}

#[test]
fn a_request_wakes_and_a_stop_settles_what_it_saw() {
    let mut observed = asleep(json!({}), 4);
    assert_eq!(started(&mut observed, 100), None, "settled");
    observed.wake = wake(Intent::Awake, 5);
    assert_eq!(started(&mut observed, 100), Some(StartReason::Wake));
    let plan = step(&mut observed, at(100));
    assert_eq!(events(&plan), ["Normal Woken"]);
    assert_eq!(observed.workspace.status.settled_transition, Some(5));
    let with_children = with_children(observed);
    assert!(decide(&with_children, at(100)).create_pod.is_some());
}

#[test]
fn a_wake_during_a_stop_starts_it_anew_when_the_pod_is_gone() {
    let mut observed = running(on_demand(json!({})));
    answered(&mut observed, 62, Answer::Accepted);
    step(&mut observed, at(62));
    pod_mut(&mut observed).deleting = true;
    observed.wake = wake(Intent::Awake, 1);
    step(&mut observed, at(64));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Starting));
    assert_eq!(observed.workspace.status.restarts, None, "the pod that goes is no loss");
    // It is waited for, at most for the time of a start and that of idleness.
    assert_eq!(decide(&observed, at(65)), Plan { requeue_at: Some(at(64 + 600 + 60)), ..Plan::default() });
    observed.pod = Seen::Missing;
    assert!(decide(&observed, at(66)).create_pod.is_some());
}

#[test]
fn an_explicit_stop_holds_until_an_explicit_start() {
    let mut observed = running(on_demand(json!({"schedules": [{"name": "day", "start": "0 9 * * *"}]})));
    observed.wake = wake(Intent::Stopped, 1);
    step(&mut observed, at(5));
    let status = &observed.workspace.status;
    assert_eq!((status.phase, status.settled_transition), (Some(Phase::Stopping), Some(1)));
    observed.pod = Seen::Missing;
    step(&mut observed, at(6));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Stopped));
    assert_eq!(started(&mut observed, 3601), None, "a schedule does not undo it");
    observed.wake = wake(Intent::Awake, 2);
    assert_eq!(started(&mut observed, 7), Some(StartReason::Wake));
}

#[test]
fn a_new_workspace_starts_at_once_or_with_its_first_request() {
    let mut at_once = fresh(on_demand(json!({})));
    assert_eq!(started(&mut at_once, 0), Some(StartReason::Created));
    let mut later = fresh(on_demand(json!({"startOnCreate": "OnFirstRequest"})));
    step(&mut later, at(0));
    assert_eq!(later.workspace.status.phase, Some(Phase::Sleeping));
    assert_eq!(later.workspace.status.settled_transition, Some(0));
    later.wake = wake(Intent::Awake, 1);
    assert_eq!(started(&mut later, 1), Some(StartReason::Wake));
}

#[test]
fn wakes_from_before_a_restored_backup_start_nothing() {
    let mut observed = fresh(on_demand(json!({"startOnCreate": "OnFirstRequest"})));
    observed.wake = wake(Intent::Awake, 7);
    step(&mut observed, at(0));
    assert_eq!(observed.workspace.status.settled_transition, Some(7));
    assert_eq!(started(&mut observed, 1), None);
    observed.wake = wake(Intent::Awake, 8);
    assert_eq!(started(&mut observed, 1), Some(StartReason::Wake));
}

#[test]
fn what_was_settled_never_becomes_less() {
    let mut observed = asleep(json!({}), 4);
    observed.wake = None;
    step(
        &mut {
            let mut woken = observed.clone();
            woken.wake = wake(Intent::Awake, 5);
            woken
        },
        at(100),
    );
    observed.wake = wake(Intent::Stopped, 0);
    step(&mut observed, at(100));
    assert_eq!(observed.workspace.status.settled_transition, Some(4), "the object was made anew");
}

#[test]
fn a_schedule_starts_and_puts_to_sleep_and_each_slot_counts_once() {
    // 08:00:00.250 is the start of the tests' time.
    let schedules = json!({"schedules": [{"name": "day", "start": "10 8 * * *", "stop": "20 8 * * *"}], "startOnCreate": "OnFirstRequest"});
    let mut observed = fresh(on_demand(schedules));
    step(&mut observed, at(0));
    let slot = |minute: i64| status::seconds(at(minute * 60));
    assert_eq!(observed.workspace.status.next_scheduled_start, Some(slot(10)));
    assert_eq!(started(&mut observed, 599), None);
    assert_eq!(started(&mut observed, 600), Some(StartReason::Schedule));
    step(&mut observed, at(600));
    assert_eq!(observed.workspace.status.last_schedule_slot, Some(slot(10)));
    observed = with_children(observed);
    observed.pod = Seen::Ours(ready(pending_pod(&observed, "pod-1", at(600)), at(602)));
    observed.agent_readiness = Some(healthy("pod-1", at(602)));
    step(&mut observed, at(602));
    // It is in use when its time has come, and is asked again; then it is not.
    answered(&mut observed, 1199, Answer::InUse { busy: false, idle_seconds: 1, busy_seconds: 0 });
    assert_eq!(decide(&observed, at(1200)).look_up, question(0));
    answered(&mut observed, 1200, Answer::InUse { busy: true, idle_seconds: 0, busy_seconds: 9 });
    assert_eq!(activity_deadline(&observed, 1200), at(1260));
    answered(&mut observed, 1260, Answer::Accepted);
    step(&mut observed, at(1260));
    let status = &observed.workspace.status;
    assert_eq!((status.phase, status.last_schedule_slot.clone()), (Some(Phase::Stopping), Some(slot(20))));
    assert_eq!(status.last_stop.as_ref().map(|stop| stop.reason), Some(StopReason::Schedule));
    observed.pod = Seen::Missing;
    step(&mut observed, at(1261));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Sleeping));
    assert_eq!(decide(&observed, at(1262)).status, None);
}

#[test]
fn a_start_that_was_missed_for_more_than_an_hour_is_dropped() {
    let schedules = json!({"schedules": [{"name": "day", "start": "10 8 * * *"}], "startOnCreate": "OnFirstRequest"});
    let mut observed = fresh(on_demand(schedules));
    step(&mut observed, at(0));
    assert_eq!(started(&mut observed, 600 + 3600), Some(StartReason::Schedule));
    assert_eq!(started(&mut observed, 600 + 3601), None);
    step(&mut observed, at(600 + 3601));
    assert_eq!(observed.workspace.status.last_schedule_slot, Some(status::seconds(at(600))), "it was answered");
    assert_eq!(decide(&observed, at(600 + 3602)).status, None);
}

#[test]
fn the_longest_run_ends_without_asking() {
    let mut observed = running(on_demand(json!({"maxRunSeconds": 100, "idleTimeoutSeconds": 0})));
    assert_eq!(activity_deadline(&observed, 50), status::seconds(at(102)).0);
    step(&mut observed, at(102));
    let status = &observed.workspace.status;
    assert_eq!(status.last_stop.as_ref().map(|stop| stop.reason), Some(StopReason::MaxRun));
    let always = running(json!({"lifecycle": {"maxRunSeconds": 100}}));
    assert_eq!(decide(&always, at(200)).status, None, "ignored with Always");
}

#[test]
fn expiry_stops_or_deletes_and_is_announced_a_day_ahead() {
    let expires = at(200_000).to_string();
    let mut observed = running(json!({"lifecycle": {"expiresAt": expires}}));
    assert_eq!(activity_deadline(&observed, 10), status::after(at(200_000), -86_400));
    let plan = step(&mut observed, at(150_000));
    assert_eq!(events(&plan), ["Normal ExpiringSoon"]);
    step(&mut observed, at(200_000));
    assert_eq!(observed.workspace.status.last_stop.as_ref().map(|stop| stop.reason), Some(StopReason::Expired));
    observed.pod = Seen::Missing;
    step(&mut observed, at(200_001));
    assert_eq!(observed.workspace.status.phase, Some(Phase::Stopped));
    let deleted = running(json!({"lifecycle": {"expiresAt": expires, "expirePolicy": "Delete"}}));
    let plan = decide(&deleted, at(200_000));
    assert_eq!((plan.delete_workspace.as_deref(), plan.status), (Some("5f0c"), None));
}

#[test]
fn the_time_to_live_counts_in_phase_stopped_and_never_asleep() {
    let mut sleeping = asleep(json!({"ttlSecondsAfterStopped": 100_000}), 1);
    assert_eq!(decide(&sleeping, at(1_000_000)).delete_workspace, None);
    sleeping.workspace.spec.run_policy = Some(crate::crd::RunPolicy::Stopped);
    step(&mut sleeping, at(1_000_000));
    assert_eq!(sleeping.workspace.status.phase, Some(Phase::Stopped));
    assert_eq!(decide(&sleeping, at(1_000_001)).delete_workspace, None, "counted from the stop, not from the sleep");
    let plan = step(&mut sleeping, at(1_020_000));
    assert_eq!(events(&plan), ["Normal ExpiringSoon"]);
    assert_eq!(decide(&sleeping, at(1_100_001)).delete_workspace.as_deref(), Some("5f0c"));
}

#[test]
fn a_lifecycle_that_cannot_be_read_blocks_a_start_but_not_a_stop() {
    let broken = json!({"schedules": [{"name": "day", "start": "0 0 30 2 *"}]});
    let mut observed = fresh(on_demand(broken.clone()));
    step(&mut observed, at(0));
    assert!(conditions(&observed.workspace.status).contains(&"Stalled=True/InvalidSpec".to_owned()));
    let mut running = running(json!({}));
    running.workspace.spec = spec(json!({"runPolicy": "Stopped", "lifecycle": broken}));
    step(&mut running, at(10));
    assert_eq!(running.workspace.status.phase, Some(Phase::Stopping));
}
