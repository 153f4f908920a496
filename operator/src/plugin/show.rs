//! Workspaces as text. Pure.

use std::fmt::Write;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::crd::{AgentWorkspace, ConditionType};

/// Columns, as wide as their widest cell.
pub fn table(workspaces: &[AgentWorkspace], with_namespace: bool, now: Timestamp) -> String {
    if workspaces.is_empty() {
        return "no workspaces\n".to_owned();
    }
    let mut rows = vec![["NAMESPACE", "NAME", "PHASE", "READY", "REASON", "AGE", "URL"].map(str::to_owned)];
    rows.extend(workspaces.iter().map(|workspace| row(workspace, now)));
    let first = usize::from(!with_namespace);
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    rows.iter().fold(String::new(), |mut text, row| {
        let cells: Vec<String> =
            row.iter().zip(widths).skip(first).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("   ").trim_end());
        text.push('\n');
        text
    })
}

fn row(workspace: &AgentWorkspace, now: Timestamp) -> [String; 7] {
    let status = workspace.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Ready.as_str());
    let metadata = &workspace.metadata;
    [
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
        status.phase.map_or_else(|| "-".to_owned(), |phase| format!("{phase:?}")),
        ready.map_or_else(|| "-".to_owned(), |ready| ready.status.clone()),
        ready.map_or_else(|| "-".to_owned(), |ready| ready.reason.clone()),
        metadata.creation_timestamp.as_ref().map_or_else(|| "-".to_owned(), |created| age(created.0, now)),
        status.url.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// As kubectl writes ages: the largest unit alone.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Phase, address, and the conditions as a chain of reasons: what is wrong first.
pub fn status(workspace: &AgentWorkspace) -> String {
    let status = workspace.status.clone().unwrap_or_default();
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            writeln!(text, "{name:<10} {value}").expect("writing to a string does not fail");
        }
    };
    line("Workspace", &workspace.metadata.name.clone().unwrap_or_default());
    line(
        "Phase",
        &status.phase.map_or_else(|| "not seen by the operator yet".to_owned(), |phase| format!("{phase:?}")),
    );
    line("URL", &status.url.unwrap_or_default());
    if let Some(pod) = &status.pod {
        let node = pod.node_name.clone().unwrap_or_default();
        line("Pod", &format!("{} on {node}", pod.name));
    }
    if let Some(stop) = &status.last_stop {
        line("Stopped", &format!("{:?}", stop.reason));
    }
    if let Some(end) = &status.last_termination {
        line("Ended", &end.reason);
    }
    let mut conditions = status.conditions;
    // Trouble is False, but for the types that only exist in trouble. That nothing runs while it rests is as it should be.
    let fine = |condition: &Condition| match (condition.type_.as_str(), condition.reason.as_str()) {
        ("Stalled" | "Reconciling", _) => condition.status == "False",
        (_, "Sleeping" | "Stopped") => true,
        _ => condition.status == "True",
    };
    conditions.sort_by_key(fine);
    for condition in &conditions {
        let mark = if fine(condition) { "ok" } else { "->" };
        writeln!(text, "{mark} {}={} {}: {}", condition.type_, condition.status, condition.reason, condition.message)
            .expect("writing to a string does not fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workspace(name: &str, status: &serde_json::Value) -> AgentWorkspace {
        serde_json::from_value(json!({
            "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
            "metadata": {"name": name, "namespace": "team-a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {}, "status": status,
        }))
        .unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str) -> serde_json::Value {
        json!({"type": kind, "status": status, "reason": reason, "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn the_list_is_a_table() {
        let conditions = [condition("Ready", "True", "Available")];
        let running = workspace("api", &json!({"phase": "Running", "url": "https://x", "conditions": conditions}));
        let now = "2026-01-01T03:00:00Z".parse().unwrap();
        assert_eq!(
            table(&[running, workspace("a-longer-name", &json!({}))], false, now),
            "NAME            PHASE     READY   REASON      AGE   URL\n\
             api             Running   True    Available   3h    https://x\n\
             a-longer-name   -         -       -           3h    -\n"
        );
        assert_eq!(table(&[], true, now), "no workspaces\n");
    }

    #[test]
    fn the_status_begins_its_chain_with_what_is_wrong() {
        let conditions = [
            condition("StorageReady", "True", "Available"),
            condition("Ready", "False", "SecretNotFound"),
            condition("Stalled", "True", "SecretNotFound"),
        ];
        let text = status(&workspace("api", &json!({"phase": "Pending", "conditions": conditions})));
        assert_eq!(
            text,
            "Workspace  api\n\
             Phase      Pending\n\
             -> Ready=False SecretNotFound: why\n\
             -> Stalled=True SecretNotFound: why\n\
             ok StorageReady=True Available: why\n"
        );
    }

    #[test]
    fn what_rests_is_not_in_trouble() {
        let conditions = [condition("Running", "False", "Sleeping"), condition("AgentReady", "Unknown", "Sleeping")];
        let text = status(&workspace("api", &json!({"phase": "Sleeping", "conditions": conditions})));
        assert_eq!(
            text,
            "Workspace  api\n\
             Phase      Sleeping\n\
             ok Running=False Sleeping: why\n\
             ok AgentReady=Unknown Sleeping: why\n"
        );
    }

    #[test]
    fn ages_have_one_unit() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |seconds| age(since, since + jiff::SignedDuration::from_secs(seconds));
        assert_eq!([after(-5), after(119), after(120), after(7200), after(172_800)], ["0s", "119s", "2m", "2h", "2d"]);
    }
}
