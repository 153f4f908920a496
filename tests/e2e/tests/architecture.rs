//! The arrows between modules. The tables below are the documentation; this test only compares them with the code.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Module → modules it may use. `lib` and `main` wire everything together and are not listed.
const OPERATOR: &[(&str, &[&str])] = &[
    ("crd", &[]),
    ("plan", &["crd"]),
    ("trust", &[]),
    ("agent", &["trust", "plan"]),
    ("telemetry", &[]),
    ("config", &["plan", "crd", "trust", "telemetry"]),
    ("cluster", &["plan", "crd", "trust", "telemetry"]),
    ("leader", &["cluster", "telemetry"]),
    ("server", &["telemetry"]),
    ("reconcile", &["cluster", "plan", "crd", "trust", "agent", "telemetry"]),
    ("observed", &["reconcile", "telemetry"]),
    ("token", &["cluster", "trust", "config", "telemetry"]),
    (
        "controller",
        &[
            "observed",
            "reconcile",
            "cluster",
            "plan",
            "crd",
            "trust",
            "agent",
            "config",
            "leader",
            "server",
            "telemetry",
        ],
    ),
    ("gateway", &["crd", "cluster", "trust", "telemetry", "config", "server"]),
    ("plugin", &["cluster", "crd"]),
    ("generate", &["crd", "plan", "cluster", "config"]),
];

/// As above, for the agent server.
const AGENT_SERVER: &[(&str, &[&str])] = &[
    ("event_log", &[]),
    ("workspace", &["event_log"]),
    ("sandbox", &["workspace"]),
    ("runtime", &["workspace", "sandbox", "config"]),
    ("check", &["sandbox", "storage"]),
    ("catalog", &["workspace", "sandbox"]),
    ("ui_bridge", &["catalog", "event_log", "storage", "workspace"]),
    ("llm", &["catalog"]),
    ("harness", &["llm", "catalog", "workspace", "sandbox"]),
    ("session", &["harness", "llm", "catalog", "workspace", "sandbox", "storage", "event_log"]),
    ("config", &["workspace", "sandbox"]),
    ("provisioning", &["config", "readiness", "sandbox", "workspace"]),
    ("auth", &["config"]),
    ("telemetry", &["config"]),
    ("activity", &[]),
    ("predecessor", &["storage"]),
    ("readiness", &[]),
    ("shutdown", &[]),
    ("quiesce", &["workspace"]),
    ("storage", &["readiness"]),
    (
        "http",
        &[
            "session",
            "ui_bridge",
            "harness",
            "llm",
            "catalog",
            "workspace",
            "sandbox",
            "config",
            "auth",
            "telemetry",
            "activity",
            "readiness",
            "shutdown",
            "quiesce",
        ],
    ),
    ("serve", &["http", "config", "auth", "shutdown", "telemetry"]),
];

/// As above, for the client of the Vercel Sandbox API.
const VERCEL_SANDBOX: &[(&str, &[&str])] = &[
    ("redacted", &[]),
    ("clock", &[]),
    ("breaker", &[]),
    ("error", &[]),
    ("lines", &["error"]),
    ("archive", &["error"]),
    ("credentials", &["error"]),
    ("policy", &["redacted"]),
    ("commands", &["redacted"]),
    ("values", &["policy", "redacted"]),
    ("transport", &["breaker", "clock", "credentials", "error"]),
    ("machine", &["archive", "commands", "error", "policy", "transport", "values"]),
    ("execution", &["commands", "error", "lines", "machine", "transport", "values"]),
    ("stable", &["error", "machine", "transport", "values"]),
    (
        "persistent",
        &["archive", "commands", "error", "execution", "machine", "policy", "stable", "transport", "values"],
    ),
    ("client", &["breaker", "clock", "credentials", "error", "persistent", "stable", "transport"]),
];

/// Source files without tests: no `tests.rs`, nothing below a folder `tests`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// First component below `src`, without `.rs`.
fn module_of(source: &Path, file: &Path) -> String {
    let relative = file.strip_prefix(source).unwrap();
    relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// Text without comments and without what follows `#[cfg(test)]`.
fn product_code(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn used_modules(code: &str) -> BTreeSet<String> {
    code.match_indices("crate::")
        .flat_map(|(at, found)| {
            let rest = &code[at + found.len()..];
            match rest.strip_prefix('{') {
                Some(list) => top_level_names(list),
                None => {
                    vec![rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned()]
                }
            }
        })
        .filter(|name| !name.is_empty())
        .collect()
}

/// First path components of `a::b, c::{d, e}, f}`.
fn top_level_names(list: &str) -> Vec<String> {
    let (mut depth, mut current, mut names) = (0, String::new(), Vec::new());
    for character in list.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(std::mem::take(&mut current)),
            _ if depth == 0 => current.push(character),
            _ => {}
        }
    }
    names.push(current);
    names.iter().map(|name| name.trim().split("::").next().unwrap_or_default().to_owned()).collect()
}

fn wrong_arrows(product: &str, table: &[(&str, &[&str])]) -> Vec<String> {
    let source = root().join(product).join("src");
    let table: BTreeMap<&str, BTreeSet<&str>> =
        table.iter().map(|(module, uses)| (*module, uses.iter().copied().collect())).collect();
    let mut wrong = Vec::new();
    for file in sources(&source) {
        let module = module_of(&source, &file);
        if matches!(module.as_str(), "lib" | "main") {
            continue;
        }
        let Some(allowed) = table.get(module.as_str()) else {
            wrong.push(format!("{product}: module {module} is not in the table"));
            continue;
        };
        for used in used_modules(&product_code(&file)) {
            if used != module && !allowed.contains(used.as_str()) {
                wrong.push(format!("{product}: {} uses crate::{used}", file.strip_prefix(&source).unwrap().display()));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// Files below `src/<modules>` of a product whose code holds one of the words.
fn files_with(product: &str, modules: &[&str], words: &[&str]) -> Vec<String> {
    let source = root().join(product).join("src");
    let mut found = Vec::new();
    for file in sources(&source).iter().filter(|file| modules.contains(&module_of(&source, file).as_str())) {
        let code = product_code(file);
        for word in words.iter().filter(|word| code.contains(**word)) {
            found.push(format!("{}: {word}", file.strip_prefix(&source).unwrap().display()));
        }
    }
    found
}

#[test]
fn arrows_between_the_operators_modules_point_one_way() {
    assert_eq!(wrong_arrows("operator", OPERATOR), Vec::<String>::new());
}

#[test]
fn arrows_between_the_agent_servers_modules_point_one_way() {
    assert_eq!(wrong_arrows("agent-server", AGENT_SERVER), Vec::<String>::new());
}

#[test]
fn arrows_between_the_sandbox_clients_modules_point_one_way() {
    assert_eq!(wrong_arrows("agent-server/vercel-sandbox", VERCEL_SANDBOX), Vec::<String>::new());
}

#[test]
fn routes_and_tools_see_only_the_traits_of_workspace_and_sandbox() {
    let words = ["std::fs", "std::process", "tokio::fs", "tokio::process", "LocalWorkspace", "LocalSandbox"];
    assert_eq!(files_with("agent-server", &["http", "catalog", "harness"], &words), Vec::<String>::new());
}

#[test]
fn planning_is_pure() {
    let words = [
        "kube::Client",
        "kube::Api",
        "Timestamp::now",
        "SystemTime",
        "Instant::now",
        "std::env",
        "rand::",
        "tokio",
        "async ",
    ];
    assert_eq!(files_with("operator", &["plan", "crd"], &words), Vec::<String>::new());
}

#[test]
fn only_the_cluster_module_talks_to_the_kubernetes_api() {
    let modules: Vec<&str> = OPERATOR.iter().map(|(module, _)| *module).filter(|module| *module != "cluster").collect();
    assert_eq!(
        files_with("operator", &modules, &["kube::Api", "Api::<", "Api::all", "Api::namespaced"]),
        Vec::<String>::new()
    );
}

#[test]
fn the_products_do_not_depend_on_each_other_and_the_doubles_depend_on_neither() {
    let manifest = |path: &str| std::fs::read_to_string(root().join(path).join("Cargo.toml")).unwrap();
    assert!(!manifest("operator").contains("agent-server"));
    assert!(!manifest("agent-server").contains("operator"));
    let fakes = manifest("tests/fakes");
    assert!(!fakes.contains("agent-server") && !fakes.contains("operator") && !fakes.contains("vercel-sandbox"));
    let client = manifest("agent-server/vercel-sandbox");
    let client = client.split("[dev-dependencies]").next().unwrap();
    assert!(!client.contains("agent-server") && !client.contains("operator") && !client.contains("fakes"));
}
