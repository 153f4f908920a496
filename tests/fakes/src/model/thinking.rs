//! Which models think in which way, and what a request may ask of them. From the provider's model pages (November 2026).

use serde_json::Value;

use super::blocks;
use super::invariants::{Check, broken};

/// Smallest thinking budget.
const MIN_BUDGET: u64 = 1_024;

/// How a family of models thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// Only with a budget (up to 4.5).
    Budget,
    /// With a budget or adaptively (4.6, and the scripted models).
    Both,
    /// Only adaptively; on when not named, its text left out unless asked for, no sampling settings (from 4.7 on).
    Adaptive,
    /// The same, and cannot be switched off (5.5, Fable, Mythos).
    AlwaysAdaptive,
}

impl Family {
    fn of(body: &Value) -> Self {
        let model = body["model"].as_str().unwrap_or_default();
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| model.starts_with(prefix));
        if begins(&["claude-sonnet-5-5", "claude-opus-5-5", "claude-fable", "claude-mythos"]) {
            Self::AlwaysAdaptive
        } else if begins(&["claude-opus-4-7", "claude-opus-4-8", "claude-opus-5", "claude-sonnet-5", "claude-haiku-5"])
        {
            Self::Adaptive
        } else if begins(&["claude-opus-4-6", "claude-sonnet-4-6"]) {
            Self::Both
        } else if begins(&["claude-3", "claude-opus-4", "claude-sonnet-4", "claude-haiku-4"]) {
            Self::Budget
        } else {
            Self::Both
        }
    }

    fn is_adaptive_only(self) -> bool {
        matches!(self, Self::Adaptive | Self::AlwaysAdaptive)
    }
}

/// Whether the model thinks in this call.
pub(super) fn enabled(body: &Value) -> bool {
    match body["thinking"]["type"].as_str() {
        Some(kind) => kind != "disabled",
        None => Family::of(body).is_adaptive_only(),
    }
}

/// Whether the text of thinking is sent.
pub(super) fn shown(body: &Value) -> bool {
    match (body["thinking"]["display"].as_str(), body["thinking"]["type"].as_str()) {
        (Some(display), _) => display == "summarized",
        (None, Some("between_tools")) => true,
        (None, _) => !Family::of(body).is_adaptive_only(),
    }
}

/// Checks `max_tokens`, `thinking`, `output_config.effort`, and what they exclude.
pub(super) fn check(body: &Value) -> Check {
    let Some(max_tokens) = body["max_tokens"].as_u64() else {
        return Err(broken("max-tokens", "max_tokens: Field required"));
    };
    if max_tokens == 0 {
        return Err(broken("max-tokens", "max_tokens: Input should be greater than or equal to 1"));
    }
    let effort = &body["output_config"]["effort"];
    if !effort.is_null() && !matches!(effort.as_str(), Some("low" | "medium" | "high" | "xhigh" | "max")) {
        return Err(broken(
            "effort",
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ));
    }
    let family = Family::of(body);
    check_kind(&body["thinking"], family, max_tokens)?;
    let sampling = ["temperature", "top_p", "top_k"].iter().find(|name| body.get(**name).is_some());
    if let Some(name) = sampling
        && family.is_adaptive_only()
    {
        return Err(broken("sampling", format!("`{name}` is not supported on this model.")));
    }
    if enabled(body) && body.get("temperature").is_some_and(|value| value.as_f64() != Some(1.0)) {
        return Err(broken("thinking", "`temperature` may only be set to 1 when thinking is enabled."));
    }
    if enabled(body) && matches!(body["tool_choice"]["type"].as_str(), Some("any" | "tool")) {
        return Err(broken("thinking", "Thinking may not be enabled when tool_choice forces tool use."));
    }
    Ok(())
}

fn check_kind(thinking: &Value, family: Family, max_tokens: u64) -> Check {
    if thinking.is_null() {
        return Ok(());
    }
    match (thinking["type"].as_str(), family) {
        (Some("disabled"), Family::AlwaysAdaptive) => {
            return Err(broken("thinking", "\"thinking.type.disabled\" is not supported for this model."));
        }
        (Some("adaptive"), Family::Budget) => {
            return Err(broken("thinking", "adaptive thinking is not supported on this model"));
        }
        (Some("enabled"), Family::Adaptive | Family::AlwaysAdaptive) => {
            let message = "\"thinking.type.enabled\" is not supported for this model. Use \"thinking.type.adaptive\" and \"output_config.effort\" to control thinking behavior.";
            return Err(broken("thinking", message));
        }
        (Some("enabled"), Family::Budget | Family::Both) => check_budget(thinking, max_tokens)?,
        (Some("disabled" | "adaptive"), _) | (Some("between_tools"), Family::AlwaysAdaptive) => {}
        _ => return Err(broken("thinking", "thinking: Input tag found does not match any of the expected tags")),
    }
    if blocks::unknown_key(thinking, &["type", "budget_tokens", "display"]).is_some() {
        return Err(broken("thinking", "thinking: Extra inputs are not permitted"));
    }
    if !matches!(thinking["display"].as_str(), None | Some("summarized" | "omitted")) {
        return Err(broken("thinking", "thinking.display: Input should be 'summarized' or 'omitted'"));
    }
    Ok(())
}

fn check_budget(thinking: &Value, max_tokens: u64) -> Check {
    let Some(budget) = thinking["budget_tokens"].as_u64() else {
        return Err(broken("thinking", "thinking.enabled.budget_tokens: Field required"));
    };
    if budget < MIN_BUDGET {
        let message = format!("thinking.enabled.budget_tokens: Input should be greater than or equal to {MIN_BUDGET}");
        return Err(broken("thinking", message));
    }
    if max_tokens <= budget {
        return Err(broken("thinking", "`max_tokens` must be greater than `thinking.budget_tokens`."));
    }
    Ok(())
}
