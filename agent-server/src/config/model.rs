//! Options of the model: provider, address, key, prices.
//!
//! Owns their checks. Must not know wires or where a key is used.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::resolve::Check;
use super::{Arguments, KeySource, ModelConfig, ModelPrice, ModelProvider};

/// Prices of one server at most; each is a short text.
const MAX_PRICES: usize = 256;

pub(super) fn model(check: &mut Check, arguments: &Arguments) -> ModelConfig {
    let choices = [("anthropic", ModelProvider::Anthropic), ("openai", ModelProvider::Openai)];
    let provider = check
        .choice("--model-provider", arguments.model_provider.as_ref(), &choices)
        .unwrap_or(ModelProvider::Anthropic);
    let base_url = arguments.model_base_url.as_ref().filter(|url| !url.is_empty()).map(|url| {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            check.fail("--model-base-url", format!("`{url}` is not an http or https URL"));
        }
        url.trim_end_matches('/').to_string()
    });
    let id = arguments.model.clone().filter(|id| !id.is_empty());
    if provider == ModelProvider::Openai && id.is_none() {
        check.fail("--model", "is needed with the provider openai, which many servers with models of their own speak");
    }
    let key = key(check, arguments, provider, base_url.as_deref());
    ModelConfig { provider, id, base_url, key, prices: prices(check, arguments) }
}

/// A missing key file is no fault: files and history work without a key, and the readiness says so.
fn key(check: &Check, arguments: &Arguments, provider: ModelProvider, base_url: Option<&str>) -> KeySource {
    let (variable, file) = match provider {
        ModelProvider::Anthropic => ("ANTHROPIC_API_KEY", arguments.anthropic_api_key_file.as_ref()),
        ModelProvider::Openai => ("OPENAI_API_KEY", arguments.openai_api_key_file.as_ref()),
    };
    // Servers of one's own speak the OpenAI wire without a key, and over plain http no key should travel.
    let own_server = provider == ModelProvider::Openai
        && base_url.is_some_and(|url| url.to_ascii_lowercase().starts_with("http://"));
    match (check.path(file), check.surroundings.variable(variable)) {
        (Some(path), _) => KeySource::File(path),
        (None, Some(value)) => KeySource::Value(SecretString::from(value.to_string())),
        (None, None) if own_server => KeySource::NotNeeded,
        (None, None) => KeySource::Missing,
    }
}

/// `MODEL=INPUT/OUTPUT[/CACHE_READ[/CACHE_WRITE]]`, separated by commas.
fn prices(check: &mut Check, arguments: &Arguments) -> BTreeMap<String, ModelPrice> {
    let mut prices = BTreeMap::new();
    let text = arguments.model_prices.as_deref().unwrap_or_default();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let Some((model, price)) = price(entry) else {
            let form = "MODEL=INPUT/OUTPUT[/CACHE_READ[/CACHE_WRITE]] in US dollars per million tokens";
            check.fail("--model-prices", format!("`{entry}` is not {form}"));
            continue;
        };
        if prices.insert(model.to_owned(), price).is_some() {
            check.fail("--model-prices", format!("`{model}` stands twice"));
        }
    }
    if prices.len() > MAX_PRICES {
        check.fail("--model-prices", format!("names more than {MAX_PRICES} models"));
    }
    prices
}

/// Cached tokens cost what others cost unless the entry says otherwise.
fn price(entry: &str) -> Option<(&str, ModelPrice)> {
    let (model, numbers) = entry.rsplit_once('=')?;
    let numbers: Option<Vec<f64>> = numbers
        .split('/')
        .map(|number| number.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0))
        .collect();
    let (input, output, rest) = match numbers?.as_slice() {
        [input, output, rest @ ..] if rest.len() <= 2 => (*input, *output, rest.to_vec()),
        _ => return None,
    };
    let model = model.trim();
    let price = ModelPrice {
        input,
        output,
        cache_read: rest.first().copied().unwrap_or(input),
        cache_write: rest.get(1).copied().unwrap_or(input),
    };
    (!model.is_empty()).then_some((model, price))
}
