//! Network policies: what each generation sends, and the one form in which the service answers.

use serde_json::{Map, Value, json};

/// The answer's form of a policy that a client sent, or what is wrong with it. Values of injected headers are dropped.
pub fn answered(sent: &Value, first_generation: bool) -> Result<Value, String> {
    let Some(policy) = sent.as_object() else { return Err("a network policy is an object".to_owned()) };
    match policy.get("mode").and_then(Value::as_str) {
        Some("allow-all" | "deny-all") => Ok(sent.clone()),
        Some("custom") if first_generation => Ok(custom(policy)),
        Some(mode) => Err(format!("mode {mode} is not one of this generation")),
        None if first_generation => Err("a policy of /v1 has a mode".to_owned()),
        None => from_rules(policy),
    }
}

fn custom(policy: &Map<String, Value>) -> Value {
    let mut answer = policy.clone();
    if let Some(rules) = answer.get_mut("injectionRules").and_then(Value::as_array_mut) {
        for rule in rules.iter_mut().filter_map(Value::as_object_mut) {
            let headers = rule.remove("headers").unwrap_or(Value::Null);
            rule.insert("headerNames".to_owned(), names(&headers));
        }
    }
    Value::Object(answer)
}

fn names(headers: &Value) -> Value {
    json!(headers.as_object().map(|headers| headers.keys().cloned().collect::<Vec<_>>()).unwrap_or_default())
}

fn from_rules(policy: &Map<String, Value>) -> Result<Value, String> {
    if let Some(key) = policy.keys().find(|key| !matches!(key.as_str(), "allow" | "subnets")) {
        return Err(format!("unknown field {key} of a network policy"));
    }
    let mut answer = Map::from_iter([("mode".to_owned(), json!("custom"))]);
    let mut injections = Vec::new();
    match policy.get("allow") {
        Some(Value::Array(domains)) => drop(answer.insert("allowedDomains".to_owned(), json!(domains))),
        Some(Value::Object(domains)) => {
            answer.insert("allowedDomains".to_owned(), json!(domains.keys().collect::<Vec<_>>()));
            for (domain, rules) in domains {
                for transform in rules.as_array().into_iter().flatten().filter_map(|rule| rule.get("transform")) {
                    for headers in transform.as_array().into_iter().flatten().filter_map(|one| one.get("headers")) {
                        injections.push(json!({"domain": domain, "headerNames": names(headers)}));
                    }
                }
            }
        }
        Some(_) => return Err("allow is a list or a map of domains".to_owned()),
        None => {}
    }
    if !injections.is_empty() {
        answer.insert("injectionRules".to_owned(), Value::Array(injections));
    }
    for (from, to) in [("allow", "allowedCIDRs"), ("deny", "deniedCIDRs")] {
        if let Some(subnets) = policy.get("subnets").and_then(|subnets| subnets.get(from)) {
            answer.insert(to.to_owned(), subnets.clone());
        }
    }
    Ok(Value::Object(answer))
}
