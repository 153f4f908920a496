//! Whether the way to the agents is whole: when many of those that were asked do not answer, no silence says anything about one of them.

use std::collections::VecDeque;

use jiff::Timestamp;

/// Answers older than this say nothing about now.
const REMEMBERED_SECONDS: i64 = 300;
/// So many that do not answer are needed at least.
const LEAST_SILENT: usize = 3;
/// And more than this share of those asked, in percent.
const SILENT_PERCENT: usize = 20;

/// The answers of the last minutes, at most one for each question: at 50/s these are 15,000 pairs, 240 KiB.
#[derive(Clone, Debug, Default)]
pub struct Answers(VecDeque<(Timestamp, bool)>);

impl Answers {
    /// One was asked.
    pub fn note(&mut self, answered: bool, now: Timestamp) {
        self.forget(now);
        self.0.push_back((now, answered));
    }

    /// Whether idle stops have to pause.
    pub fn paused(&mut self, now: Timestamp) -> bool {
        self.forget(now);
        let silent = self.0.iter().filter(|(_, answered)| !answered).count();
        silent >= LEAST_SILENT && silent * 100 > self.0.len() * SILENT_PERCENT
    }

    fn forget(&mut self, now: Timestamp) {
        while self.0.front().is_some_and(|(at, _)| now.as_second() - at.as_second() > REMEMBERED_SECONDS) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + seconds).unwrap()
    }

    #[test]
    fn stops_pause_when_more_than_a_fifth_and_at_least_three_do_not_answer() {
        let mut answers = Answers::default();
        answers.note(false, at(0));
        answers.note(false, at(0));
        assert!(!answers.paused(at(0)), "two may be two broken agents");
        answers.note(false, at(1));
        assert!(answers.paused(at(1)));
        for _ in 0..12 {
            answers.note(true, at(2));
        }
        assert!(!answers.paused(at(2)), "three of fifteen are a fifth");
        answers.note(false, at(3));
        assert!(answers.paused(at(3)));
        assert!(!answers.paused(at(400)), "what was is no news");
    }
}
