//! Facts about known models: label, output limit, price. Public list prices; unknown models have none.
//!
//! Owns the table. Must not know the wire or who asks.

use serde::Serialize;

use super::Usage;

/// How a family of models is told to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingStyle {
    /// By a budget of tokens.
    Budget,
    /// By itself, steered by an effort; on unless switched off, its text left out unless asked for.
    Adaptive,
    /// The same, and it cannot be switched off.
    AlwaysAdaptive,
}

/// Families that think by themselves (from 4.7 on), those that always do first.
const ADAPTIVE: &[(&str, ThinkingStyle)] = &[
    ("claude-sonnet-5-5", ThinkingStyle::AlwaysAdaptive),
    ("claude-opus-5-5", ThinkingStyle::AlwaysAdaptive),
    ("claude-fable", ThinkingStyle::AlwaysAdaptive),
    ("claude-mythos", ThinkingStyle::AlwaysAdaptive),
    ("claude-opus-4-7", ThinkingStyle::Adaptive),
    ("claude-opus-4-8", ThinkingStyle::Adaptive),
    ("claude-opus-5", ThinkingStyle::Adaptive),
    ("claude-sonnet-5", ThinkingStyle::Adaptive),
    ("claude-haiku-5", ThinkingStyle::Adaptive),
];

/// How a model is told to think; a budget for models that are not in the table.
pub fn thinking_style(model: &str) -> ThinkingStyle {
    ADAPTIVE.iter().find(|(prefix, _)| model.starts_with(prefix)).map_or(ThinkingStyle::Budget, |(_, style)| *style)
}

/// A model that users can pick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KnownModel {
    /// Ids begin with this; dated ids match their family.
    pub prefix: &'static str,
    /// For people.
    pub label: &'static str,
    /// Most output tokens of one call.
    pub max_output: u32,
    /// US dollars per million input and output tokens.
    pub price: (f64, f64),
}

/// Longest prefix first where one is the beginning of another.
const ANTHROPIC: &[KnownModel] = &[
    KnownModel { prefix: "claude-opus-4-5", label: "Claude Opus 4.5", max_output: 64_000, price: (5.0, 25.0) },
    KnownModel { prefix: "claude-sonnet-4-5", label: "Claude Sonnet 4.5", max_output: 64_000, price: (3.0, 15.0) },
    KnownModel { prefix: "claude-haiku-4-5", label: "Claude Haiku 4.5", max_output: 64_000, price: (1.0, 5.0) },
    KnownModel { prefix: "claude-opus-4-1", label: "Claude Opus 4.1", max_output: 32_000, price: (15.0, 75.0) },
    KnownModel { prefix: "claude-opus-4-2025", label: "Claude Opus 4", max_output: 32_000, price: (15.0, 75.0) },
    KnownModel { prefix: "claude-sonnet-4-2025", label: "Claude Sonnet 4", max_output: 64_000, price: (3.0, 15.0) },
    KnownModel { prefix: "claude-3-7-sonnet", label: "Claude Sonnet 3.7", max_output: 64_000, price: (3.0, 15.0) },
    KnownModel { prefix: "claude-3-5-haiku", label: "Claude Haiku 3.5", max_output: 8_192, price: (0.8, 4.0) },
];

/// Ids shown by `GET /agent/models` besides the configured one.
const OFFERED: &[&str] = &["claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"];

/// The model used when none is configured.
pub const DEFAULT_MODEL: &str = "claude-sonnet-4-5";

/// Output limit of a model that is not in the table; the smallest of the current families.
const UNKNOWN_MAX_OUTPUT: u32 = 32_000;

/// Looks a model up.
pub fn find(model: &str) -> Option<&'static KnownModel> {
    ANTHROPIC.iter().find(|known| model.starts_with(known.prefix))
}

/// Most output tokens of one call.
pub fn max_output(model: &str) -> u32 {
    find(model).map_or(UNKNOWN_MAX_OUTPUT, |known| known.max_output)
}

/// Price of one call in US dollars by kind; `None` for models without a known price.
/// Cache reads cost a tenth of input, cache writes (5 minutes) a quarter more.
pub fn cost(model: &str, usage: Usage) -> Option<Cost> {
    let (input, output) = find(model)?.price;
    #[allow(clippy::cast_precision_loss)] // token counts are far below 2^52
    let dollars = |tokens: u64, per_million: f64| tokens as f64 * per_million / 1e6;
    let parts = Cost {
        input: dollars(usage.input, input),
        output: dollars(usage.output, output),
        cache_read: dollars(usage.cache_read, input * 0.1),
        cache_write: dollars(usage.cache_write, input * 1.25),
        total: 0.0,
    };
    Some(Cost { total: parts.input + parts.output + parts.cache_read + parts.cache_write, ..parts })
}

/// Price of one call in US dollars.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Input outside the cache.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Read from the cache.
    pub cache_read: f64,
    /// Written to the cache.
    pub cache_write: f64,
    /// Sum.
    pub total: f64,
}

/// Id and label of the models on offer, the configured one first.
pub fn offered(configured: &str) -> Vec<(String, String)> {
    std::iter::once(configured)
        .chain(OFFERED.iter().copied().filter(|id| *id != configured))
        .map(|id| (id.to_owned(), find(id).map_or_else(|| id.to_owned(), |known| known.label.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_adds_cache_reads_and_writes_and_is_absent_for_unknown_models() {
        let usage = Usage { input: 1_000_000, output: 1_000_000, cache_read: 1_000_000, cache_write: 1_000_000 };
        let cost = cost("claude-sonnet-4-5-20250929", usage).expect("known");
        assert!((cost.total - (3.0 + 15.0 + 0.3 + 3.75)).abs() < 1e-9);
        assert_eq!(super::cost("llama", usage), None);
    }

    #[test]
    fn every_offered_model_is_known_and_the_configured_one_comes_first() {
        let offered = offered("local-model");
        assert_eq!(offered[0], ("local-model".to_owned(), "local-model".to_owned()));
        assert!(offered[1..].iter().all(|(id, label)| find(id).is_some_and(|known| known.label == label)));
    }
}
