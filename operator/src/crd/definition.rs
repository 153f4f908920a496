//! The published CustomResourceDefinition: the derived schema, plus the rules that only CEL can say, less what Kubernetes
//! does not want in a schema.
//!
//! Transition rules stand on `spec` itself: below an optional parent they are bypassed in two steps (drop the parent, add
//! it back different). They are written without optional chaining, which the API server prices a hundred times over its budget.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use super::{AgentWorkspace, AgentWorkspaceWake, wake_rules};

/// One CEL rule and the sentence a user reads when it is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// JSON path of the schema node below the root, as keys of `properties` (and `[]` for the items of a list).
    pub path: &'static [&'static str],
    /// CEL expression.
    pub rule: &'static str,
    /// What is wrong and what is permitted.
    pub message: &'static str,
}

/// Rules on the whole object. They are checked again on every status patch, so a stored object that breaks a new one could
/// never be reported on: they are frozen with v1alpha1.
pub const fn root_rules() -> &'static [Rule] {
    &[Rule {
        path: &[],
        // 52 + `-agent` (6) + 5 for what a controller of the cluster may append is 63, the limit of a label.
        rule: "self.metadata.name.matches('^[a-z]([a-z0-9-]{1,50})[a-z0-9]$') && !self.metadata.name.contains('--')",
        message: "metadata.name must be a DNS label of 3 to 52 characters that begins with a letter, without '--' in it",
    }]
}

/// Rules on `spec` and below. Those that compare with the past stand on `spec`; the others stand as deep as they can, since
/// the API server does not check a part again that did not change: an object from before a rule can be repaired in steps.
pub const fn spec_rules() -> &'static [Rule] {
    SPEC_RULES
}

const SPEC_RULES: &[Rule] = &[
    Rule {
        path: &["spec"],
        rule: "has(self.owner) == has(oldSelf.owner)",
        message: "spec.owner cannot be added or removed after creation",
    },
    Rule {
        path: &["spec"],
        rule: "!has(self.owner) || !has(oldSelf.owner) || self.owner == oldSelf.owner",
        message: "spec.owner cannot be changed",
    },
    Rule {
        path: &["spec"],
        rule: "(has(self.storage) && has(self.storage.storageClassName) ? self.storage.storageClassName : '') == (has(oldSelf.storage) && has(oldSelf.storage.storageClassName) ? oldSelf.storage.storageClassName : '')",
        message: "spec.storage.storageClassName cannot be changed",
    },
    Rule {
        path: &["spec"],
        rule: "(has(self.storage) && has(self.storage.accessMode) ? self.storage.accessMode : '') == (has(oldSelf.storage) && has(oldSelf.storage.accessMode) ? oldSelf.storage.accessMode : '')",
        message: "spec.storage.accessMode cannot be changed",
    },
    Rule {
        path: &["spec"],
        rule: "(has(self.storage) && has(self.storage.ephemeral)) == (has(oldSelf.storage) && has(oldSelf.storage.ephemeral))",
        message: "spec.storage.ephemeral cannot be added or removed after creation",
    },
    Rule {
        path: &["spec"],
        rule: "!(has(oldSelf.storage) && has(oldSelf.storage.size)) || (has(self.storage) && has(self.storage.size) && quantity(string(self.storage.size)).compareTo(quantity(string(oldSelf.storage.size))) >= 0)",
        message: "spec.storage.size may grow but not shrink or be removed",
    },
    Rule {
        path: &["spec", "storage"],
        rule: "!has(self.ephemeral) || !(has(self.size) || has(self.storageClassName) || has(self.accessMode) || has(self.retention))",
        message: "spec.storage.ephemeral excludes size, storageClassName, accessMode and retention",
    },
    Rule {
        path: &["spec", "storage"],
        rule: "!has(self.size) || quantity(string(self.size)).compareTo(quantity('1Mi')) >= 0",
        message: "spec.storage.size must be at least 1Mi",
    },
    Rule {
        path: &["spec", "storage"],
        rule: "!(has(self.ephemeral) && has(self.ephemeral.sizeLimit)) || quantity(string(self.ephemeral.sizeLimit)).compareTo(quantity('1Mi')) >= 0",
        message: "spec.storage.ephemeral.sizeLimit must be at least 1Mi",
    },
    Rule {
        path: &["spec", "agent", "model"],
        rule: "!has(self.provider) || self.provider != 'openai' || has(self.id)",
        message: "spec.agent.model.id is needed with provider openai",
    },
    Rule {
        path: &["spec", "agent", "credentials"],
        rule: "self.filter(credential, credential.purpose == 'ModelKey').size() <= 1",
        message: "at most one credential has purpose ModelKey",
    },
    Rule {
        path: &["spec", "agent", "credentials", "[]"],
        rule: "self.purpose != 'Environment' || self.name.matches('^[A-Za-z_][A-Za-z0-9_]*$')",
        message: "the name of a credential with purpose Environment must be a variable name",
    },
    Rule {
        path: &["spec", "agent", "env", "[]"],
        rule: "!self.name.matches('^(BORING_AGENT_|LD_|KUBERNETES_|GIT_CONFIG_).*') && !self.name.matches('^.*_[Pp][Rr][Oo][Xx][Yy]$') && !(self.name in ['ANTHROPIC_API_KEY_FILE', 'OPENAI_API_KEY_FILE'])",
        message: "names that begin with BORING_AGENT_, LD_, KUBERNETES_ or GIT_CONFIG_, end in _PROXY, or are ANTHROPIC_API_KEY_FILE or OPENAI_API_KEY_FILE belong to the operator",
    },
    Rule {
        path: &["spec", "lifecycle"],
        rule: "!has(self.idleTimeoutSeconds) || self.idleTimeoutSeconds == 0 || self.idleTimeoutSeconds >= 60",
        message: "spec.lifecycle.idleTimeoutSeconds must be 0 (never) or at least 60",
    },
    Rule {
        path: &["spec", "lifecycle"],
        rule: "!has(self.idleTimeoutSeconds) || !has(self.maxBusySeconds) || self.maxBusySeconds >= self.idleTimeoutSeconds",
        message: "spec.lifecycle.maxBusySeconds must be at least idleTimeoutSeconds",
    },
    Rule {
        path: &["spec", "lifecycle", "schedules", "[]"],
        rule: "has(self.start) || has(self.stop)",
        message: "a schedule has start, stop or both",
    },
    Rule {
        path: &["spec", "template"],
        rule: "has(self.configMapName) ? !(has(self.image) || has(self.path)) : (has(self.image) && has(self.path))",
        message: "spec.template needs either configMapName, or image and path",
    },
    Rule {
        path: &["spec", "scheduling"],
        rule: "!has(self.priorityClassName) || !self.priorityClassName.startsWith('system-')",
        message: "priority classes of the cluster itself (system-…) are not permitted",
    },
    Rule { path: &["spec", "podMetadata", "labels"], rule: POD_METADATA_KEYS, message: POD_METADATA_MESSAGE },
    Rule { path: &["spec", "podMetadata", "annotations"], rule: POD_METADATA_KEYS, message: POD_METADATA_MESSAGE },
];

/// A label without a prefix, or with one of Kubernetes, could make another team's Service select the pod; a tracking key of a
/// deployment tool could make that tool delete it.
const POD_METADATA_KEYS: &str = "self.all(key, key.matches('^[a-z0-9.-]+/.+$') && !key.matches('^([a-z0-9.-]+[.])?(kubernetes[.]io|k8s[.]io|agents[.]boring[.]dev|argoproj[.]io|fluxcd[.]io)/.*$'))";
const POD_METADATA_MESSAGE: &str = "keys need a prefix such as example.com/ that is not one of kubernetes.io, k8s.io, agents.boring.dev, argoproj.io or fluxcd.io";

/// The definition as it is installed.
///
/// # Panics
/// Never, unless a rule names a path that the types do not have; a test renders it.
pub fn agent_workspace_definition() -> CustomResourceDefinition {
    published(AgentWorkspace::crd(), root_rules().iter().chain(spec_rules()).chain(super::sandbox_rules()), |root| {
        // The one default: without it kstatus calls a fresh object Current before the operator has looked at it.
        root["properties"]["status"]["properties"]["observedGeneration"]["default"] = json!(-1);
        root["properties"]["status"]["default"] = json!({"observedGeneration": -1});
    })
}

/// The definition of the wake object as it is installed.
///
/// # Panics
/// As [`agent_workspace_definition`].
pub fn agent_workspace_wake_definition() -> CustomResourceDefinition {
    published(AgentWorkspaceWake::crd(), wake_rules().iter(), |_| {})
}

fn published<'a>(
    derived: CustomResourceDefinition,
    rules: impl Iterator<Item = &'a Rule>,
    adjust: impl FnOnce(&mut Value),
) -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(derived).expect("a derived definition is plain data");
    let root = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    strip(root);
    rules.for_each(|rule| add_rule(root, rule));
    adjust(root);
    serde_json::from_value(definition).expect("the stripped definition is still a definition")
}

/// Removes what a Kubernetes schema must not have: `nullable` (optional fields are absent, never null) and the formats that
/// only Rust knows.
fn strip(schema: &mut Value) {
    match schema {
        Value::Object(fields) => strip_fields(fields),
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

fn strip_fields(fields: &mut Map<String, Value>) {
    fields.remove("nullable");
    if fields
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|format| !matches!(format, "int32" | "int64" | "date-time"))
    {
        fields.remove("format");
    }
    fields.values_mut().for_each(strip);
}

fn add_rule(root: &mut Value, rule: &Rule) {
    let mut node = root;
    for key in rule.path {
        node = if *key == "[]" { &mut node["items"] } else { &mut node["properties"][*key] };
    }
    let fields = node.as_object_mut().expect("the path of a rule leads to a schema");
    let rules = fields.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    rules.as_array_mut().expect("rules are a list").push(json!({"rule": rule.rule, "message": rule.message}));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas() -> Vec<Value> {
        [agent_workspace_definition(), agent_workspace_wake_definition()]
            .map(|definition| {
                let definition = serde_json::to_value(definition).expect("plain data");
                definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
            })
            .to_vec()
    }

    fn walk_all(visit: &mut impl FnMut(&str, &Value)) {
        for schema in schemas() {
            walk("", &schema, visit);
        }
    }

    /// Calls `visit` with the path and each schema below.
    fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
        visit(path, schema);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), property, visit);
        }
        for below in ["items", "additionalProperties"] {
            if schema[below].is_object() {
                walk(&format!("{path}[]"), &schema[below], visit);
            }
        }
    }

    #[test]
    fn everything_is_bounded() {
        let mut unbounded = Vec::new();
        walk_all(&mut |path, schema| {
            let quantity = schema["x-kubernetes-int-or-string"] == true;
            let text =
                quantity || (schema["type"] == "string" && schema["enum"].is_null() && schema["format"] != "date-time");
            let number = schema["type"] == "integer" && path.starts_with(".spec");
            if (text && schema["maxLength"].is_null())
                || (schema["type"] == "array" && schema["maxItems"].is_null())
                || (schema["additionalProperties"].is_object() && schema["maxProperties"].is_null())
                || (number && (schema["minimum"].is_null() || schema["maximum"].is_null()))
            {
                unbounded.push(path.to_owned());
            }
        });
        assert_eq!(unbounded, Vec::<String>::new());
    }

    #[test]
    fn nothing_is_null_or_defaulted_but_the_observed_generation() {
        let mut defaulted = Vec::new();
        walk_all(&mut |path, schema| {
            assert!(schema["nullable"].is_null(), "{path}");
            assert!(matches!(schema["format"].as_str(), None | Some("int32" | "int64" | "date-time")), "{path}");
            assert!(
                !schema["description"].is_null() || path.is_empty() || path.ends_with("[]"),
                "{path} has no description"
            );
            if !schema["default"].is_null() {
                defaulted.push(path.to_owned());
            }
        });
        assert_eq!(defaulted, [".status", ".status.observedGeneration"]);
    }

    #[test]
    fn rules_that_compare_with_the_past_stand_on_spec_and_use_no_optional_chaining() {
        for rule in root_rules().iter().chain(spec_rules()).chain(crate::crd::sandbox_rules()).chain(wake_rules()) {
            assert!(!rule.rule.contains("oldSelf") || rule.path == ["spec"], "{}", rule.rule);
            assert!(!rule.rule.contains(".?") && !rule.rule.contains("[?"), "{}", rule.rule);
            assert!(rule.message.len() <= 200, "{}", rule.message);
        }
    }
}
