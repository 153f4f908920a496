//! What is generated is well-formed, complete and checked in.

use std::{collections::BTreeSet, fs, path::Path};

use super::*;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

#[test]
fn checked_in_files_are_what_the_code_says() {
    run(true, root()).expect("`make gen` was run");
}

#[test]
fn a_difference_is_named_and_writing_repairs_it() {
    let folder = tempfile::tempdir().expect("a folder");
    run(false, folder.path()).expect("written");
    run(true, folder.path()).expect("nothing differs");
    let victim = folder.path().join("docs/api.md");
    fs::write(&victim, "changed").expect("written");
    fs::remove_file(folder.path().join("crds/agents.boring.dev_agentworkspaces.yaml")).expect("removed");
    let error = run(true, folder.path()).expect_err("two differ");
    assert_eq!(
        error.to_string(),
        "generated files differ, run `make gen`: docs/api.md, crds/agents.boring.dev_agentworkspaces.yaml"
    );
    run(false, folder.path()).expect("written again");
    run(true, folder.path()).expect("nothing differs");
}

#[test]
fn the_values_that_the_chart_ships_satisfy_its_schema() {
    let schema: serde_json::Value = serde_json::from_str(&values::schema()).expect("a schema");
    let text = fs::read_to_string(root().join(CHART).join("values.yaml")).expect("the chart's values");
    let values: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    let errors: Vec<String> =
        validator.iter_errors(&values).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn every_value_of_the_schema_is_in_the_chart_and_the_other_way_round() {
    let schema: serde_json::Value = serde_json::from_str(&values::schema()).expect("a schema");
    let text = fs::read_to_string(root().join(CHART).join("values.yaml")).expect("the chart's values");
    let values: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
    let keys = |value: &serde_json::Value| -> BTreeSet<String> {
        value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    let mut known = keys(&schema["properties"]);
    assert!(known.remove("global"), "Helm hands it to every chart");
    assert_eq!(known, keys(&values));
}

#[test]
fn a_misspelt_value_is_refused() {
    let schema: serde_json::Value = serde_json::from_str(&values::schema()).expect("a schema");
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    assert!(!validator.is_valid(&serde_json::json!({"replica": 2})));
    assert!(!validator.is_valid(&serde_json::json!({"networkPolicy": {"clusterCidrs": []}})));
    assert!(validator.is_valid(&serde_json::json!({"replicas": 0, "crds": {"install": false}})));
}
