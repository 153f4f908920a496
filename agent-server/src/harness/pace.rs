//! How often deltas go out. Clients work through the whole text at each delta, so neighbours are merged.
//!
//! Owns the rates and the text that waits. Must not know chunks; time comes in as an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Text and reasoning: 60 a second.
const TEXT_INTERVAL: Duration = Duration::from_micros(16_667);
/// Arguments: 10 a second, 2 a second for long ones, whose parsing costs the client more each time.
const ARGUMENT_INTERVAL: Duration = Duration::from_millis(100);
const LONG_ARGUMENT_INTERVAL: Duration = Duration::from_millis(500);
const LONG_ARGUMENT_BYTES: usize = 64 * 1024;
const MIN_ARGUMENT_BYTES: usize = 256;
/// Preliminary output: 4 a second.
pub const PRELIMINARY_INTERVAL: Duration = Duration::from_millis(250);

/// What is being paced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paced {
    /// Text or reasoning: the first piece goes out at once.
    Text,
    /// Arguments: at least 256 bytes at a time, the last piece excepted.
    Arguments,
}

/// Text of one part that waits for its time.
#[derive(Debug)]
pub struct Pacer {
    kind: Paced,
    pending: String,
    sent_bytes: usize,
    last: Option<Instant>,
}

impl Pacer {
    /// For one part.
    pub fn new(kind: Paced) -> Self {
        Self { kind, pending: String::new(), sent_bytes: 0, last: None }
    }

    /// Adds text; returns what may go out now.
    pub fn push(&mut self, text: &str, now: Instant) -> Option<String> {
        self.pending.push_str(text);
        self.take_due(now)
    }

    /// When waiting text may go out; `None` while nothing waits or too little.
    pub fn due(&self) -> Option<Instant> {
        let enough = match self.kind {
            Paced::Text => !self.pending.is_empty(),
            Paced::Arguments => self.pending.len() >= MIN_ARGUMENT_BYTES,
        };
        enough.then(|| self.last.map_or_else(Instant::now, |last| last + self.interval()))
    }

    /// Takes waiting text whose time has come.
    pub fn take_due(&mut self, now: Instant) -> Option<String> {
        let due = self.due()?;
        if self.last.is_some() && due > now {
            return None;
        }
        self.last = Some(now);
        self.take_rest()
    }

    /// Takes whatever waits.
    pub fn take_rest(&mut self) -> Option<String> {
        self.sent_bytes += self.pending.len();
        (!self.pending.is_empty()).then(|| std::mem::take(&mut self.pending))
    }

    fn interval(&self) -> Duration {
        match self.kind {
            Paced::Text => TEXT_INTERVAL,
            Paced::Arguments if self.sent_bytes + self.pending.len() > LONG_ARGUMENT_BYTES => LONG_ARGUMENT_INTERVAL,
            Paced::Arguments => ARGUMENT_INTERVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `pieces` one each `step` and returns the sizes and times of what went out.
    fn run(kind: Paced, pieces: usize, size: usize, step: Duration) -> Vec<(Duration, usize)> {
        let start = Instant::now();
        let mut pacer = Pacer::new(kind);
        let mut out = Vec::new();
        for number in 0..pieces {
            let at = step * u32::try_from(number).expect("small");
            if let Some(text) = pacer.push(&"x".repeat(size), start + at) {
                out.push((at, text.len()));
            }
        }
        let rest = pacer.take_rest().map_or(0, |text| text.len());
        assert_eq!(out.iter().map(|(_, size)| size).sum::<usize>() + rest, pieces * size, "nothing is lost");
        out
    }

    #[test]
    fn the_first_text_goes_out_at_once_and_then_at_most_sixty_a_second() {
        let out = run(Paced::Text, 1_000, 3, Duration::from_millis(1));
        assert_eq!(out[0], (Duration::ZERO, 3));
        assert!(out.len() <= 61, "{}", out.len());
    }

    #[test]
    fn arguments_go_out_at_most_ten_times_a_second_in_pieces_of_256_bytes_or_more() {
        let out = run(Paced::Arguments, 2_000, 4, Duration::from_millis(1));
        assert!(out.iter().all(|(_, size)| *size >= 256), "{out:?}");
        assert!(out.windows(2).all(|pair| pair[0].0 + Duration::from_millis(100) <= pair[1].0), "{out:?}");
    }

    #[test]
    fn long_arguments_go_out_twice_a_second() {
        let out = run(Paced::Arguments, 4_000, 100, Duration::from_millis(1));
        let late: Vec<_> = out.iter().filter(|(at, _)| *at > Duration::from_millis(1_300)).collect();
        assert!(late.len() <= 6, "{late:?}");
    }
}
