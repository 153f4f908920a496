//! The circuit breaker: closed, open for a while after failures in a row, then one probe. Time comes in as an argument.

use std::sync::{Arc, Mutex, PoisonError};

/// Failures in a row that open it.
const FAILURES: u32 = 5;
/// How long it stays open, in milliseconds.
const OPEN: u64 = 30_000;

#[derive(Debug, Clone, Copy)]
enum State {
    Closed { failures: u32 },
    Open { until: u64 },
    Probing { until: u64 },
}

#[derive(Debug)]
pub struct Breaker(Mutex<State>);

/// The right to one try. Dropped without a report (a cancelled call), a probe is given back.
pub struct Permit {
    breaker: Arc<Breaker>,
    reported: bool,
}

impl Breaker {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Closed { failures: 0 })))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets one try through, or says until when there is none.
    pub fn ask(self: &Arc<Self>, now: u64) -> Result<Permit, u64> {
        self.change(|state| match *state {
            State::Closed { .. } => Ok(()),
            State::Open { until } if until <= now => {
                *state = State::Probing { until: now + OPEN };
                Ok(())
            }
            State::Open { until } | State::Probing { until } => Err(until),
        })
        .map(|()| Permit { breaker: Arc::clone(self), reported: false })
    }
}

impl Permit {
    /// The service answered, whatever it said.
    pub fn answered(mut self) {
        self.reported = true;
        self.breaker.change(|state| *state = State::Closed { failures: 0 });
    }

    /// The service failed or was not reached.
    pub fn failed(mut self, now: u64) {
        self.reported = true;
        self.breaker.change(|state| {
            *state = match *state {
                State::Closed { failures } if failures + 1 < FAILURES => State::Closed { failures: failures + 1 },
                State::Open { until } => State::Open { until },
                State::Closed { .. } | State::Probing { .. } => State::Open { until: now + OPEN },
            };
        });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.reported {
            self.breaker.change(|state| {
                if matches!(state, State::Probing { .. }) {
                    *state = State::Open { until: 0 };
                }
            });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn opened() -> Arc<Breaker> {
        let breaker = Breaker::new();
        for _ in 0..FAILURES {
            breaker.ask(0).ok().unwrap().failed(0);
        }
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it_for_thirty_seconds() {
        let breaker = opened();
        assert_eq!(breaker.ask(29_999).err(), Some(30_000));
        assert!(breaker.ask(30_000).is_ok());
    }

    #[test]
    fn only_one_probe_is_let_through_and_its_answer_closes_it() {
        let breaker = opened();
        let probe = breaker.ask(30_000).ok().unwrap();
        assert_eq!(breaker.ask(30_000).err(), Some(60_000));
        probe.answered();
        assert!(breaker.ask(30_000).is_ok());
    }

    #[test]
    fn a_cancelled_probe_is_given_back() {
        let breaker = opened();
        drop(breaker.ask(30_000).ok().unwrap());
        assert!(breaker.ask(30_000).is_ok());
    }

    #[test]
    fn a_failed_probe_opens_it_again() {
        let breaker = opened();
        breaker.ask(30_000).ok().unwrap().failed(31_000);
        assert_eq!(breaker.ask(60_999).err(), Some(61_000));
    }
}
