//! Tests of the pure core and of the guards.

use std::time::{Duration, Instant};

use super::{Activity, ActivityReport, BusyReason, DrainRequest, Draining, State, Work};

const SECOND: Duration = Duration::from_secs(1);

fn if_idle(seconds: u64) -> DrainRequest {
    DrainRequest { if_idle_seconds: Some(seconds), ..DrainRequest::default() }
}

#[test]
fn an_idle_workspace_counts_seconds_since_its_last_use() {
    let start = Instant::now();
    let mut state = State::new(start);
    assert_eq!(
        state.report(start + 7 * SECOND, 0),
        ActivityReport { busy: false, reasons: vec![], idle_seconds: 7, busy_seconds: 0, turns: 0, processes: 0 }
    );
}

#[test]
fn every_kind_of_work_is_reported_with_its_reason() {
    let start = Instant::now();
    let mut state = State::new(start);
    for work in [Work::Turn, Work::Exec, Work::Request] {
        state.begin(work, start + SECOND).expect("open");
    }
    assert_eq!(
        state.report(start + 5 * SECOND, 2),
        ActivityReport {
            busy: true,
            reasons: vec![BusyReason::Turn, BusyReason::Process, BusyReason::Exec, BusyReason::Request],
            idle_seconds: 0,
            busy_seconds: 4,
            turns: 1,
            processes: 2,
        }
    );
}

#[test]
fn a_process_that_was_seen_running_is_use_until_then() {
    let start = Instant::now();
    let mut state = State::new(start);
    state.report(start + 100 * SECOND, 1);
    assert_eq!(state.report(start + 103 * SECOND, 0).idle_seconds, 3);
}

#[test]
fn a_busy_workspace_refuses_a_conditional_drain_and_changes_nothing() {
    let start = Instant::now();
    let mut state = State::new(start);
    state.begin(Work::Turn, start).expect("open");
    let report = state.drain(start + 50 * SECOND, if_idle(10), 0).expect_err("busy");
    assert_eq!(report.reasons, vec![BusyReason::Turn]);
    assert!(!state.draining(start + 50 * SECOND));
}

#[test]
fn a_workspace_used_since_refuses_a_conditional_drain() {
    let start = Instant::now();
    let mut state = State::new(start);
    state.begin(Work::Request, start + 5 * SECOND).expect("open");
    state.end(Work::Request, start + 6 * SECOND);
    assert_eq!(state.drain(start + 15 * SECOND, if_idle(10), 0).expect_err("used since").idle_seconds, 9);
    assert_eq!(state.drain(start + 16 * SECOND, if_idle(10), 0), Ok(()));
}

#[test]
fn a_drain_refuses_turns_and_requests_but_not_commands_of_a_running_turn() {
    let start = Instant::now();
    let mut state = State::new(start);
    state.begin(Work::Turn, start).expect("open");
    assert_eq!(state.drain(start, DrainRequest::default(), 0), Ok(()));
    assert_eq!(state.begin(Work::Turn, start), Err(Draining));
    assert_eq!(state.begin(Work::Request, start), Err(Draining));
    assert_eq!(state.begin(Work::Exec, start), Ok(()));
}

#[test]
fn a_hold_without_a_stop_is_taken_back() {
    let start = Instant::now();
    let mut state = State::new(start);
    let request = DrainRequest { hold_seconds: Some(20), ..if_idle(0) };
    assert_eq!(state.drain(start + 60 * SECOND, request, 0), Ok(()));
    assert!(state.draining(start + 79 * SECOND));
    assert!(!state.draining(start + 80 * SECOND));
    assert_eq!(state.begin(Work::Turn, start + 81 * SECOND), Ok(()));
}

#[test]
fn a_stop_is_final_even_when_a_later_drain_has_a_hold() {
    let start = Instant::now();
    let mut state = State::new(start);
    state.drain(start, DrainRequest::default(), 0).expect("drains");
    state.stop();
    state.drain(start, DrainRequest { hold_seconds: Some(0), ..DrainRequest::default() }, 0).expect("drains");
    assert!(state.draining(start + 1000 * SECOND));
}

#[test]
fn a_hold_longer_than_a_day_is_cut_to_a_day_instead_of_overflowing() {
    let start = Instant::now();
    let mut state = State::new(start);
    let request = DrainRequest { hold_seconds: Some(u64::MAX), ..DrainRequest::default() };
    assert_eq!(state.drain(start, request, 0), Ok(()));
    assert!(state.draining(start + 86_399 * SECOND));
    assert!(!state.draining(start + 86_400 * SECOND));
}

#[tokio::test]
async fn waiting_for_turns_ends_with_the_last_guard() {
    let activity = Activity::new(|| 0);
    let first = activity.begin_turn().expect("open");
    let second = activity.begin_turn().expect("open");
    let waiting = tokio::spawn({
        let activity = activity.clone();
        async move { activity.turns_ended().await }
    });
    drop(first);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    drop(second);
    tokio::time::timeout(10 * SECOND, waiting).await.expect("in time").expect("no panic");
}
