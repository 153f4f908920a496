//! What a person at a terminal asks of the API server: workspaces as they are now, and a token for the gateway.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};

use super::{Calls, ClusterError};
use crate::{
    crd::AgentWorkspace,
    telemetry::{Kind, Verb},
};

/// Workspaces asked for at once.
const PAGE: u32 = 500;

/// All workspaces of a namespace, or of the cluster, sorted by namespace and name.
pub async fn list_workspaces(
    client: Client,
    calls: &Calls,
    namespace: Option<&str>,
) -> Result<Vec<AgentWorkspace>, ClusterError> {
    let api: Api<AgentWorkspace> =
        namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace));
    let mut parameters = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = calls.run(Kind::AgentWorkspace, Verb::List, api.list(&parameters)).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => break,
        }
    }
    found.sort_by(|one, other| {
        (&one.metadata.namespace, &one.metadata.name).cmp(&(&other.metadata.namespace, &other.metadata.name))
    });
    Ok(found)
}

/// One workspace; `None` when there is none.
pub async fn get_workspace(
    client: Client,
    calls: &Calls,
    namespace: &str,
    name: &str,
) -> Result<Option<AgentWorkspace>, ClusterError> {
    let api: Api<AgentWorkspace> = Api::namespaced(client, namespace);
    calls.run(Kind::AgentWorkspace, Verb::Get, api.get_opt(name)).await
}

/// A token of a service account for an audience, good for ten minutes; `None` when the API server gives none.
pub async fn account_token(
    client: Client,
    calls: &Calls,
    namespace: &str,
    account: &str,
    audience: &str,
) -> Result<Option<String>, ClusterError> {
    let api: Api<ServiceAccount> = Api::namespaced(client, namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![audience.to_owned()]),
            // The shortest that the API server gives.
            expiration_seconds: Some(600),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let parameters = PostParams::default();
    let call = api.create_token_request(account, &parameters, &request);
    let made = calls.run(Kind::TokenRequest, Verb::Create, call).await?;
    Ok(made.status.and_then(|status| status.token))
}
