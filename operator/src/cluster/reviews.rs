//! Questions to the API server about people: whose token is this, and may they connect?

use std::collections::BTreeMap;

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use serde::{Deserialize, Serialize};

use super::{Calls, ClusterError, WorkspaceKey};
use crate::{
    crd::GROUP,
    telemetry::{Kind, Verb},
};

/// Somebody, as the API server knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// User name.
    pub user: String,
    /// UID of the user, if the cluster knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Whatever the authenticator adds; access reviews may depend on it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Asks the API server.
#[derive(Clone)]
pub struct Reviews {
    client: Client,
    calls: Calls,
}

impl Reviews {
    /// Asks with `client`.
    pub fn new(client: Client, calls: Calls) -> Self {
        Self { client, calls }
    }

    /// Whose token this is; `None` when it is nobody's. With an audience, the token must have been made for it, and the answer
    /// must say so: an API server that does not know audiences would accept any token.
    pub async fn token(&self, token: &str, audience: Option<&str>) -> Result<Option<Person>, ClusterError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: audience.map(|audience| vec![audience.to_owned()]),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        let call = api.create(&parameters, &review);
        let status = self.calls.run(Kind::TokenReview, Verb::Create, call).await?.status.unwrap_or_default();
        let meant_for_us =
            audience.is_none_or(|audience| status.audiences.iter().flatten().any(|known| known == audience));
        if status.authenticated != Some(true) || !meant_for_us {
            return Ok(None);
        }
        Ok(status.user.and_then(|user| {
            Some(Person {
                user: user.username.filter(|name| !name.is_empty())?,
                uid: user.uid.filter(|uid| !uid.is_empty()),
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            })
        }))
    }

    /// Whether somebody may `create agentworkspaces/connect` for this workspace. There is no such subresource to call.
    pub async fn may_connect(&self, person: &Person, key: &WorkspaceKey) -> Result<bool, ClusterError> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(person.user.clone()),
                uid: person.uid.clone(),
                groups: Some(person.groups.clone()),
                extra: Some(person.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(GROUP.to_owned()),
                    resource: Some("agentworkspaces".to_owned()),
                    subresource: Some("connect".to_owned()),
                    verb: Some("create".to_owned()),
                    namespace: Some(key.namespace.clone()),
                    name: Some(key.name.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        let call = api.create(&parameters, &review);
        let status = self.calls.run(Kind::SubjectAccessReview, Verb::Create, call).await?.status.unwrap_or_default();
        Ok(status.allowed && status.denied != Some(true))
    }
}
