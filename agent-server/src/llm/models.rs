//! The models on offer and what they cost: configured prices first, then the table of known models.
//!
//! Owns the choice between both. Must not know wires or sessions.

use std::collections::BTreeMap;

use super::Usage;
use super::known::{self, Cost};

/// The provider whose models the table knows.
const KNOWN_PROVIDER: &str = "anthropic";

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// Input outside the cache.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Read from the cache.
    pub cache_read: f64,
    /// Written to the cache.
    pub cache_write: f64,
}

impl Price {
    /// What one call costs.
    pub fn cost(self, usage: Usage) -> Cost {
        #[allow(clippy::cast_precision_loss)] // token counts are far below 2^52
        let dollars = |tokens: u64, per_million: f64| tokens as f64 * per_million / 1e6;
        let parts = Cost {
            input: dollars(usage.input, self.input),
            output: dollars(usage.output, self.output),
            cache_read: dollars(usage.cache_read, self.cache_read),
            cache_write: dollars(usage.cache_write, self.cache_write),
            total: 0.0,
        };
        Cost { total: parts.input + parts.output + parts.cache_read + parts.cache_write, ..parts }
    }
}

/// The models of one provider.
#[derive(Debug, Clone)]
pub struct Models {
    provider: &'static str,
    default: String,
    prices: BTreeMap<String, Price>,
}

impl Models {
    /// `default` is the model of chats that name none; `prices` hold by the whole id.
    pub fn new(provider: &'static str, default: String, prices: BTreeMap<String, Price>) -> Self {
        Self { provider, default, prices }
    }

    /// Price of one call in US dollars by kind; `None` for models without a known price.
    pub fn cost(&self, model: &str, usage: Usage) -> Option<Cost> {
        match self.prices.get(model) {
            Some(price) => Some(price.cost(usage)),
            None if self.provider == KNOWN_PROVIDER => known::cost(model, usage),
            None => None,
        }
    }

    /// Id and label of the models on offer: the default one, those with a configured price, the known ones.
    pub fn offered(&self) -> Vec<(String, String)> {
        let known: &[&str] = if self.provider == KNOWN_PROVIDER { known::OFFERED } else { &[] };
        let mut ids = vec![self.default.as_str()];
        for id in self.prices.keys().map(String::as_str).chain(known.iter().copied()) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let label = |id| known::find(id).map_or(id, |known| known.label);
        ids.into_iter().map(|id| (id.to_owned(), label(id).to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price = Price { input: 1.0, output: 8.0, cache_read: 0.1, cache_write: 1.0 };
    const USAGE: Usage = Usage { input: 1_000_000, output: 500_000, cache_read: 2_000_000, cache_write: 0 };

    fn models(provider: &'static str, default: &str, priced: &str) -> Models {
        Models::new(provider, default.into(), [(priced.to_owned(), PRICE)].into())
    }

    #[test]
    fn a_configured_price_holds_before_the_known_one_and_only_for_its_model() {
        let expected = Cost { input: 1.0, output: 4.0, cache_read: 0.2, cache_write: 0.0, total: 5.2 };
        let models = models("anthropic", "claude-sonnet-5-5", "claude-opus-5-5");
        assert_eq!(models.cost("claude-opus-5-5", USAGE), Some(expected));
        assert_eq!(models.cost("claude-sonnet-5-5", USAGE), known::cost("claude-sonnet-5-5", USAGE));
    }

    #[test]
    fn another_provider_s_models_have_only_configured_prices_whatever_their_names() {
        let models = models("openai", "local", "priced");
        assert_eq!(models.cost("claude-sonnet-5-5", USAGE), None);
        assert!(models.cost("priced", USAGE).is_some());
        let ids: Vec<_> = models.offered().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, ["local", "priced"]);
    }

    #[test]
    fn the_default_model_comes_first_and_none_comes_twice() {
        let offered = models("anthropic", "claude-opus-5-5", "claude-haiku-5-5").offered();
        let ids: Vec<_> = offered.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["claude-opus-5-5", "claude-haiku-5-5", "claude-sonnet-5-5"]);
        assert!(offered.iter().all(|(id, label)| known::find(id).is_some_and(|known| known.label == label)));
    }
}
