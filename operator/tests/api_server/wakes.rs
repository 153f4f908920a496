//! The wake object: its counter only grows.

use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use operator::crd::{AgentWorkspaceWake, AgentWorkspaceWakeSpec, Intent, wake_rules};
use serde_json::json;

use crate::support::Space;

#[tokio::test]
async fn the_counter_grows_and_the_intent_is_one_of_two_words() {
    let space = Space::new(json!({})).await;
    let api: Api<AgentWorkspaceWake> = Api::namespaced(space.client.clone(), &space.name);
    let wake = AgentWorkspaceWake::new("alice", AgentWorkspaceWakeSpec { intent: Intent::Awake, counter: 7 });
    api.create(&PostParams::default(), &wake).await.expect("created");
    let patch = async |spec: serde_json::Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        match api.patch("alice", &PatchParams::default(), &patch).await {
            Ok(wake) => Ok(wake.spec),
            Err(kube::Error::Api(status)) if status.code == 422 => Err(status.message.clone()),
            Err(error) => panic!("neither accepted nor refused: {error}"),
        }
    };
    let accepted = patch(json!({"counter": 8, "intent": "Stopped"})).await.expect("grown");
    assert_eq!(accepted, AgentWorkspaceWakeSpec { intent: Intent::Stopped, counter: 8 });
    patch(json!({"counter": 8, "intent": "Awake"})).await.expect("the same counter");
    for (spec, expected) in [
        (json!({"counter": 7}), wake_rules()[0].message),
        (json!({"counter": -1}), "should be greater than or equal to 0"),
        (json!({"intent": "Perhaps"}), "Unsupported value"),
        (json!({"counter": null}), "Required value"),
    ] {
        let message = patch(spec.clone()).await.expect_err("refused");
        assert!(message.contains(expected), "{spec}: {message}");
    }
    space.remove().await;
}
