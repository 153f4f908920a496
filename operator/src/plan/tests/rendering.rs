//! Children as the API server gets them.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{endpoint::ModelPods, *};

fn valid(value: Value) -> Valid {
    Valid::parse(&permitting("fakes"), &fresh(value).workspace).expect("a valid spec")
}

#[test]
fn the_smallest_workspace_renders_every_child() {
    let valid = valid(json!({}));
    insta::assert_yaml_snapshot!("smallest_pod", children::pod(&valid, "KEYS"));
    insta::assert_yaml_snapshot!("smallest_claim", children::claim(&valid, None, None).expect("a claim").object);
    insta::assert_yaml_snapshot!("smallest_service", children::service(&valid).0);
    insta::assert_yaml_snapshot!("smallest_policy", children::network_policy(&Config::default(), &valid, None).0);
}

#[test]
fn a_workspace_with_everything_renders_everything() {
    let valid = valid(full_spec());
    let config = Config {
        metrics_from: vec![Peer {
            namespace_labels: [("kubernetes.io/metadata.name".to_owned(), "monitoring".to_owned())].into(),
            ..Peer::default()
        }],
        cluster_cidrs: vec!["8.8.0.0/16".to_owned(), "2600::/48".to_owned()],
        dns: ClusterDns { cidrs: vec!["169.254.20.10/32".to_owned()], ..Config::default().dns },
        ..Config::default()
    };
    let model = ModelPods {
        namespace: "fakes".to_owned(),
        labels: [("app".to_owned(), "model".to_owned())].into(),
        port: IntOrString::String("http".to_owned()),
    };
    insta::assert_yaml_snapshot!("full_pod", children::pod(&valid, "KEYS"));
    insta::assert_yaml_snapshot!("full_claim", children::claim(&valid, None, None).expect("a claim").object);
    insta::assert_yaml_snapshot!("full_policy", children::network_policy(&config, &valid, Some(&model)).0);
}

#[test]
fn the_key_of_each_provider_has_its_own_variable() {
    for (model, variable, other) in [
        (json!({}), "ANTHROPIC_API_KEY_FILE", "OPENAI_API_KEY_FILE"),
        (json!({"provider": "openai", "id": "m"}), "OPENAI_API_KEY_FILE", "ANTHROPIC_API_KEY_FILE"),
    ] {
        let key = json!([{"name": "k", "secretKeyRef": {"name": "agent-a", "key": "token"}, "purpose": "ModelKey"}]);
        let pod = children::pod(&valid(json!({"agent": {"model": model.clone(), "credentials": key}})), "KEYS");
        let environment = pod.spec.expect("a spec").containers.remove(0).env.expect("an environment");
        let value = |name: &str| environment.iter().find(|one| one.name == name).and_then(|one| one.value.clone());
        assert_eq!(value(variable).as_deref(), Some("/run/boring-agent/model-key/token"), "{model}");
        assert_eq!(value(other), None, "{model}");
        let provider = model["provider"].as_str().map(str::to_owned);
        assert_eq!(value("BORING_AGENT_MODEL_PROVIDER"), provider, "{model}");
    }
}

#[test]
fn a_template_out_of_an_image_is_unpacked_by_a_container_of_its_own() {
    let valid = valid(json!({"template": {"image": "registry.example.com/starter:1", "path": "/starter"}}));
    let spec = children::pod(&valid, "KEYS").spec.expect("a spec");
    insta::assert_yaml_snapshot!("template_container", spec.init_containers.expect("a container")[0]);
    let volume = spec.volumes.expect("volumes").into_iter().find(|volume| volume.name == "template").expect("a volume");
    assert_eq!(
        serde_json::to_value(volume).expect("plain"),
        json!({"name": "template", "emptyDir": {"sizeLimit": "512Mi"}})
    );
    let mounts = spec.containers[0].volume_mounts.clone().expect("mounts");
    let mount = mounts.iter().find(|mount| mount.name == "template").expect("a mount");
    assert_eq!((mount.mount_path.as_str(), mount.read_only), ("/run/boring-agent/template", Some(true)));
}

#[test]
fn the_order_of_libraries_is_no_reason_to_start_anew() {
    let revision = |list: Value| children::revision(&valid(json!({"libraries": {"python": list}})));
    assert_eq!(revision(json!(["a", "b"])), revision(json!(["b", "a"])));
    assert_ne!(revision(json!(["a", "b"])), revision(json!(["a"])));
    assert_eq!(revision(json!([])), children::revision(&valid(json!({}))));
}

#[test]
fn where_there_is_a_gateway_it_is_the_way_in_unless_the_spec_says_otherwise() {
    let with_gateway =
        Config { workspace_url: Some("https://{name}--{namespace}.example.com".to_owned()), ..Config::default() };
    let callers = |config: &Config, spec: Value| {
        let valid = Valid::parse(config, &fresh(spec).workspace).expect("a valid spec");
        let policy = children::network_policy(config, &valid, None).0.spec.expect("a spec");
        let from = policy.ingress.expect("rules")[0].from.clone().expect("peers");
        serde_json::to_value(&from[1]).expect("plain")
    };
    let gateway = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-workspace-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "agent-workspace-gateway"}},
    });
    let own_namespace = json!({"podSelector": {}});
    let cluster_local = json!({"access": {"exposure": "ClusterLocal"}});
    assert_eq!(callers(&with_gateway, json!({})), gateway);
    assert_eq!(callers(&with_gateway, cluster_local.clone()), own_namespace);
    assert_eq!(callers(&Config::default(), json!({})), own_namespace);
    assert_eq!(callers(&Config::default(), json!({"access": {"exposure": "Gateway"}})), gateway);
    let url = |spec| plan(&with_gateway, &fresh(spec), at(0)).status.expect("a status").status.url;
    assert_eq!(url(cluster_local), None);
    assert_eq!(url(json!({})).as_deref(), Some("https://alice--team-a.example.com"));
}

#[test]
fn ephemeral_space_is_on_the_node_and_counts_into_its_limit() {
    let valid = valid(json!({"storage": {"ephemeral": {"sizeLimit": "3Gi"}}}));
    assert_eq!(children::claim(&valid, None, None), None);
    let spec = children::pod(&valid, "KEYS").spec.expect("a spec");
    let home = spec.volumes.expect("volumes").into_iter().find(|volume| volume.name == "home").expect("a home");
    assert_eq!(serde_json::to_value(home).expect("plain"), json!({"name": "home", "emptyDir": {"sizeLimit": "3Gi"}}));
    let limits = spec.containers[0].resources.clone().expect("resources").limits.expect("limits");
    assert_eq!(limits["ephemeral-storage"].0, (5_u64 << 30).to_string());
}

#[test]
fn only_what_the_agent_sees_changes_the_revision() {
    let base = children::revision(&valid(json!({})));
    let same = [
        json!({"runPolicy": "Stopped"}),
        json!({"podMetadata": {"labels": {"example.com/a": "b"}, "annotations": {"example.com/a": "b"}}}),
        json!({"storage": {"size": "50Gi"}}),
        json!({"lifecycle": {"startTimeoutSeconds": 30, "failurePolicy": "Ignore"}}),
        json!({"owner": {"user": "bob"}}),
    ];
    for spec in same {
        assert_eq!(children::revision(&valid(spec.clone())), base, "{spec}");
    }
    let other = [
        json!({"agent": {"image": "other"}}),
        json!({"agent": {"systemPrompt": "speak"}}),
        json!({"agent": {"env": [{"name": "A", "value": "b"}]}}),
        json!({"resources": {"limits": {"memory": "3Gi"}}}),
        json!({"storage": {"ephemeral": {}}}),
        json!({"lifecycle": {"stopGracePeriodSeconds": 30}}),
    ];
    for spec in other {
        assert_ne!(children::revision(&valid(spec.clone())), base, "{spec}");
    }
    let pod = children::pod(&valid(json!({})), "OTHER KEYS");
    assert_eq!(pod.metadata.annotations.expect("annotations")[crate::crd::ANNOTATION_REVISION], base);
}

#[test]
fn an_existing_claim_keeps_what_cannot_be_changed_and_is_applied_once() {
    let valid = valid(json!({"storage": {"size": "5Gi"}}));
    let first = children::claim(&valid, None, None).expect("a claim");
    let Seen::Ours(mut view) = with_children(fresh(json!({"storage": {"size": "5Gi"}}))).claim else {
        panic!("a claim")
    };
    view.requested = Some("5Gi".to_owned());
    let again = children::claim(&valid, Some(&view), None).expect("a claim");
    assert_eq!(again.applied, first.applied, "values that the API server filled in are no reason to apply again");
    let spec = again.object.spec.expect("a spec");
    assert_eq!(spec.storage_class_name.as_deref(), Some("standard"));
    assert_eq!(spec.access_modes, Some(vec!["ReadWriteOnce".to_owned()]));
}

#[test]
fn a_claim_grows_where_its_class_permits_and_never_shrinks() {
    let size = |wanted: &str, class: Option<bool>| {
        let valid = valid(json!({"storage": {"size": wanted}}));
        let Seen::Ours(view) = with_children(fresh(json!({}))).claim else { panic!("a claim") };
        let class = class.map(|allow| StorageClassView {
            name: "standard".to_owned(),
            allow_volume_expansion: allow,
            waits_for_consumer: true,
        });
        let claim = children::claim(&valid, Some(&view), class.as_ref()).expect("a claim");
        let requests = claim.object.spec.and_then(|spec| spec.resources?.requests).expect("requests");
        (requests["storage"].0.clone(), claim.resize_unsupported)
    };
    assert_eq!(size("20Gi", Some(true)), ("20Gi".to_owned(), false));
    assert_eq!(size("20Gi", Some(false)), ("10Gi".to_owned(), true));
    assert_eq!(size("20Gi", None), ("20Gi".to_owned(), false));
    assert_eq!(size("5Gi", Some(true)), ("10Gi".to_owned(), false));
    assert_eq!(size("10240Mi", Some(false)), ("10Gi".to_owned(), false));
}

#[test]
fn a_claim_grows_only_once_it_is_bound() {
    let valid = valid(json!({"storage": {"size": "20Gi"}}));
    let Seen::Ours(mut view) = with_children(fresh(json!({}))).claim else { panic!("a claim") };
    view.phase = ClaimPhase::Pending;
    let pending = children::claim(&valid, Some(&view), None).expect("a claim");
    assert_eq!(Some(pending.applied), view.applied, "nothing to apply yet");
    view.phase = ClaimPhase::Bound;
    let bound = children::claim(&valid, Some(&view), None).expect("a claim");
    assert_ne!(Some(bound.applied), view.applied);
}
