//! What the double saw: counts, summaries of the newest requests, broken invariants. Never holds a header, so no key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use serde::Serialize;
use serde_json::Value;

use super::wire::ProviderError;

/// Summaries kept.
const MAX_SUMMARIES: usize = 1_000;
/// Bodies kept, and the largest that is kept: 16 × 2 MiB = 32 MiB at most.
const MAX_BODIES: usize = 16;
const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
/// Failures kept; a test reads the first ones.
const MAX_FAILURES: usize = 1_000;
/// Distinct requests whose attempts are counted; 40 bytes each, so 4 MB. When full the counting starts anew.
const MAX_ATTEMPTS: usize = 100_000;

/// A request that broke an invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Number of the request, from 1.
    pub request: u64,
    /// Stable word of the invariant.
    pub invariant: &'static str,
    /// What the answer said.
    pub message: String,
}

/// How many requests came and how they ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// All requests to the API, refused ones included.
    pub requests: u64,
    /// Answers by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// Accepted calls that are being answered now.
    pub active: u64,
    /// Largest number of calls answered at once.
    pub most_active: u64,
    /// Answers that were sent to their end.
    pub finished: u64,
    /// Answers that a script ended by a cut or an `error` event.
    pub broken: u64,
    /// Answers whose reader went away first.
    pub abandoned: u64,
    /// Broken invariants.
    pub failures: u64,
}

/// One request in short.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestSummary {
    /// Number, from 1.
    pub number: u64,
    /// Model id.
    pub model: String,
    /// Messages in the conversation.
    pub messages: usize,
    /// Names of the declared tools.
    pub tools: Vec<String>,
    /// `max_tokens`.
    pub max_tokens: u64,
    /// Thinking budget, 0 when thinking is off.
    pub thinking_budget: u64,
    /// A stream was asked.
    pub stream: bool,
    /// HTTP status, 0 until it is known.
    pub status: u16,
    /// `pending`, `refused`, `finished`, `broken` or `abandoned`.
    pub outcome: &'static str,
}

/// How an accepted call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Finished,
    Broken,
    Abandoned,
}

#[derive(Default)]
struct Inner {
    counters: Counters,
    failures: Vec<Failure>,
    summaries: VecDeque<RequestSummary>,
    bodies: VecDeque<(u64, Value)>,
    attempts: HashMap<[u8; 32], u64>,
}

/// The record, shared by all requests of one double.
#[derive(Default)]
pub struct Record(Mutex<Inner>);

impl Record {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic while the record is held")
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.inner().counters.clone()
    }

    /// The failures so far.
    pub fn failures(&self) -> Vec<Failure> {
        self.inner().failures.clone()
    }

    /// The failures so far, which are forgotten.
    pub fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut self.inner().failures)
    }

    /// The newest requests, oldest first.
    pub fn requests(&self) -> Vec<RequestSummary> {
        self.inner().summaries.iter().cloned().collect()
    }

    /// The body of a request, while it is kept.
    pub fn body(&self, number: u64) -> Option<Value> {
        self.inner().bodies.iter().find(|(kept, _)| *kept == number).map(|(_, body)| body.clone())
    }

    /// A request came; gives its number.
    pub(super) fn begin(&self) -> u64 {
        let mut inner = self.inner();
        inner.counters.requests += 1;
        let number = inner.counters.requests;
        if inner.summaries.len() == MAX_SUMMARIES {
            inner.summaries.pop_front();
        }
        inner.summaries.push_back(RequestSummary { number, outcome: "pending", ..RequestSummary::default() });
        number
    }

    /// Its body was read; the newest ones are kept as they came.
    pub(super) fn keep_body(&self, number: u64, body: &Value) {
        if body.to_string().len() > MAX_BODY_BYTES {
            return;
        }
        let mut inner = self.inner();
        if inner.bodies.len() == MAX_BODIES {
            inner.bodies.pop_front();
        }
        inner.bodies.push_back((number, body.clone()));
    }

    /// Its body in the form of the Messages API, for the summary.
    pub(super) fn describe(&self, number: u64, body: &Value) {
        let size = |value: &Value| value.as_array().map_or(0, Vec::len);
        let names = body["tools"].as_array().into_iter().flatten();
        let names = names.filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect();
        let mut inner = self.inner();
        inner.update(number, |summary| {
            body["model"].as_str().unwrap_or_default().clone_into(&mut summary.model);
            summary.messages = size(&body["messages"]);
            summary.tools = names;
            summary.max_tokens = body["max_tokens"].as_u64().unwrap_or(0);
            summary.thinking_budget = body["thinking"]["budget_tokens"].as_u64().unwrap_or(0);
            summary.stream = body["stream"] == true;
        });
    }

    /// It was answered with an error.
    pub(super) fn refuse(&self, number: u64, error: &ProviderError) {
        let mut inner = self.inner();
        *inner.counters.statuses.entry(error.status).or_default() += 1;
        if let Some(invariant) = error.invariant {
            inner.counters.failures += 1;
            if inner.failures.len() < MAX_FAILURES {
                inner.failures.push(Failure { request: number, invariant, message: error.message.clone() });
            }
        }
        inner.update(number, |summary| {
            summary.status = error.status;
            summary.outcome = "refused";
        });
    }

    /// It was accepted and is being answered.
    pub(super) fn accept(&self, number: u64) {
        let mut inner = self.inner();
        *inner.counters.statuses.entry(200).or_default() += 1;
        inner.counters.active += 1;
        inner.counters.most_active = inner.counters.most_active.max(inner.counters.active);
        inner.update(number, |summary| summary.status = 200);
    }

    /// Its answer ended.
    pub(super) fn end(&self, number: u64, outcome: Outcome) {
        let mut inner = self.inner();
        inner.counters.active -= 1;
        let (count, word) = match outcome {
            Outcome::Finished => (&mut inner.counters.finished, "finished"),
            Outcome::Broken => (&mut inner.counters.broken, "broken"),
            Outcome::Abandoned => (&mut inner.counters.abandoned, "abandoned"),
        };
        *count += 1;
        inner.update(number, |summary| summary.outcome = word);
    }

    /// How many equal requests came before.
    pub(super) fn attempt(&self, request: [u8; 32]) -> u64 {
        let mut inner = self.inner();
        if inner.attempts.len() >= MAX_ATTEMPTS {
            inner.attempts.clear();
        }
        let count = inner.attempts.entry(request).or_default();
        let attempt = *count;
        *count += 1;
        attempt
    }
}

impl Inner {
    fn update(&mut self, number: u64, change: impl FnOnce(&mut RequestSummary)) {
        if let Some(summary) = self.summaries.iter_mut().rev().find(|summary| summary.number == number) {
            change(summary);
        }
    }
}
