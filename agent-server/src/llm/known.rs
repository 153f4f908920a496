//! Facts about known models: label, output limit, price. Public list prices; unknown models have none.
//!
//! Owns the table. Must not know the wire or who asks.

use serde::Serialize;

use super::Usage;

/// How a model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingStyle {
    /// `thinking.type: enabled` with a token budget; without it the model does not think. Up to the 4.5 families.
    Budget,
    /// `thinking.type: adaptive` with `output_config.effort`; newer models refuse a budget.
    Adaptive {
        /// The `thinking.type` that means least thinking: `adaptive` where it cannot be switched off, `None` to leave
        /// the setting out.
        least: Option<&'static str>,
    },
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
    /// Price of a cache read as a part of the input price.
    pub cache_read: f64,
    /// Prompts above so many tokens cost so many times as much.
    pub long_prompt: Option<(u64, f64)>,
    /// How it is asked to think.
    pub thinking: ThinkingStyle,
}

impl KnownModel {
    const fn new(prefix: &'static str, label: &'static str, max_output: u32, price: (f64, f64)) -> Self {
        let thinking = ThinkingStyle::Budget;
        Self { prefix, label, max_output, price, cache_read: 0.1, long_prompt: None, thinking }
    }

    const fn adaptive(self, least: &'static str) -> Self {
        Self { thinking: ThinkingStyle::Adaptive { least: Some(least) }, ..self }
    }

    const fn cache_read(self, part: f64) -> Self {
        Self { cache_read: part, ..self }
    }
}

/// From the provider's model pages (November 2026). Longest prefix first where one is the beginning of another.
const ANTHROPIC: &[KnownModel] = &[
    KnownModel::new("claude-opus-5-5", "Claude Opus 5.5", 128_000, (4.0, 20.0)).adaptive("adaptive").cache_read(0.05),
    KnownModel::new("claude-sonnet-5-5", "Claude Sonnet 5.5", 128_000, (2.0, 10.0))
        .adaptive("between_tools")
        .cache_read(0.05),
    KnownModel {
        long_prompt: Some((100_000, 5.0)),
        ..KnownModel::new("claude-haiku-5-5", "Claude Haiku 5.5", 128_000, (0.1, 0.5)).adaptive("disabled")
    },
    KnownModel::new("claude-fable-5", "Claude Fable 5", 128_000, (10.0, 50.0)).adaptive("adaptive"),
    KnownModel::new("claude-opus-5", "Claude Opus 5", 128_000, (5.0, 25.0)).adaptive("disabled"),
    KnownModel::new("claude-sonnet-5", "Claude Sonnet 5", 128_000, (2.0, 10.0)).adaptive("disabled"),
    KnownModel::new("claude-opus-4-8", "Claude Opus 4.8", 128_000, (5.0, 25.0)).adaptive("disabled"),
    KnownModel::new("claude-opus-4-7", "Claude Opus 4.7", 128_000, (5.0, 25.0)).adaptive("disabled"),
    KnownModel::new("claude-opus-4-6", "Claude Opus 4.6", 128_000, (5.0, 25.0)).adaptive("disabled"),
    KnownModel::new("claude-sonnet-4-6", "Claude Sonnet 4.6", 64_000, (3.0, 15.0)).adaptive("disabled"),
    KnownModel::new("claude-opus-4-5", "Claude Opus 4.5", 64_000, (5.0, 25.0)),
    KnownModel::new("claude-sonnet-4-5", "Claude Sonnet 4.5", 64_000, (3.0, 15.0)),
    KnownModel::new("claude-haiku-4-5", "Claude Haiku 4.5", 64_000, (1.0, 5.0)),
    KnownModel::new("claude-opus-4-1", "Claude Opus 4.1", 32_000, (15.0, 75.0)),
    KnownModel::new("claude-opus-4-2025", "Claude Opus 4", 32_000, (15.0, 75.0)),
    KnownModel::new("claude-sonnet-4-2025", "Claude Sonnet 4", 64_000, (3.0, 15.0)),
    KnownModel::new("claude-3-7-sonnet", "Claude Sonnet 3.7", 64_000, (3.0, 15.0)),
    KnownModel::new("claude-3-5-haiku", "Claude Haiku 3.5", 8_192, (0.8, 4.0)),
];

/// Ids shown by `GET /agent/models` besides the configured ones.
pub const OFFERED: &[&str] = &["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"];

/// The model used when none is configured.
pub const DEFAULT_MODEL: &str = "claude-sonnet-5-5";

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

/// How a model is asked to think. A model of the provider that is not in the table is taken for a newer one.
pub fn thinking(model: &str) -> ThinkingStyle {
    match find(model) {
        Some(known) => known.thinking,
        None if model.starts_with("claude-") => ThinkingStyle::Adaptive { least: None },
        None => ThinkingStyle::Budget,
    }
}

/// Price of one call in US dollars by kind; `None` for models without a known price.
/// Cache writes (5 minutes) cost a quarter more than input.
pub fn cost(model: &str, usage: Usage) -> Option<Cost> {
    let known = find(model)?;
    let prompt = usage.input + usage.cache_read + usage.cache_write;
    let factor = known.long_prompt.filter(|(limit, _)| prompt > *limit).map_or(1.0, |(_, factor)| factor);
    let (input, output) = (known.price.0 * factor, known.price.1 * factor);
    #[allow(clippy::cast_precision_loss)] // token counts are far below 2^52
    let dollars = |tokens: u64, per_million: f64| tokens as f64 * per_million / 1e6;
    let parts = Cost {
        input: dollars(usage.input, input),
        output: dollars(usage.output, output),
        cache_read: dollars(usage.cache_read, input * known.cache_read),
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
    fn long_prompts_and_cache_reads_have_the_model_s_own_price() {
        let usage = |input, cache_read| Usage { input, cache_read, output: 1_000, cache_write: 0 };
        let total = |model, usage| cost(model, usage).expect("known").total;
        assert!((total("claude-haiku-5-5", usage(100_000, 0)) - (0.01 + 0.0005)).abs() < 1e-9);
        assert!((total("claude-haiku-5-5", usage(100_000, 1)) - (0.05 + 0.0025)).abs() < 1e-6);
        assert!((total("claude-opus-5-5", usage(0, 1_000_000)) - (0.2 + 0.02)).abs() < 1e-9);
    }

    #[test]
    fn a_family_is_not_taken_for_its_older_namesake() {
        let label = |model| find(model).expect("known").label;
        assert_eq!(label("claude-sonnet-5-5"), "Claude Sonnet 5.5");
        assert_eq!(label("claude-sonnet-5"), "Claude Sonnet 5");
        assert_eq!(label("claude-opus-4-5-20251101"), "Claude Opus 4.5");
    }
}
