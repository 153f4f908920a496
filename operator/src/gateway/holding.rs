//! Handing a request to its workspace's pod, and holding it while the pod is not there.
//!
//! Owns who waits, how long, and what is said to those who do not or wait in vain.

use std::{sync::Arc, time::Instant};

use axum::http::{Method, StatusCode};
use jiff::Timestamp;
use tokio::{
    sync::SemaphorePermit,
    time::{Duration, timeout},
};

use super::{
    Gateway,
    answer::{self, Answer},
    flight::{Outcome, target},
    forward::{Attempt, Call},
    identity::Credential,
    request::{Caller, Done},
    streams::Opened,
    upload::Upload,
    waking::{self, Waking},
};
use crate::{
    cluster::{Entry, Person, Reachable},
    crd::{Phase, RunPolicy, WakeMode},
    telemetry::{Ending, GatewayMetrics},
    trust::audience,
};

/// A browser is shown that something happens after this long.
const PAGE_AFTER: Duration = Duration::from_millis(1500);

impl Gateway {
    /// Hands the request to the pod, waiting for it if the request is one that wakes.
    pub(super) async fn serve(
        &self,
        caller: Caller,
        credential: Credential,
        person: &Arc<Person>,
        workspace: Entry<Reachable>,
    ) -> Done {
        let is_page = caller.method == Method::GET && waking::accepts_html(&caller.headers);
        let Caller { method, headers, route, host, upgrade, upload, request_id, .. } = caller;
        let opened = Opened { credential, key: route.key.clone(), workspace_uid: workspace.uid.clone() };
        let mut call = Call { method, route, headers, upgrade, public_host: host, request_id, opened };
        let mut hold = None;
        loop {
            // Made anew under the same name, it is another workspace: rights were asked for the one that is gone.
            let now = self.caches.workspaces.get(&call.route.key).filter(|now| now.uid == workspace.uid);
            let Some(now) = now else {
                return Done::says(Ending::NotServing, &Self::refused(Outcome::Gone, &workspace.value));
            };
            match self.try_pod(&mut call, &upload, person, &now).await {
                Attempt::Answered(response) => return Done::new(Ending::Forwarded, response),
                Attempt::Failed(answer) => return Done::says(Ending::PodFailed, &answer),
                Attempt::NotServing => {}
            }
            let hold = match &mut hold {
                Some(hold) => hold,
                None => match self.begin_hold(&call, &upload, &now.value, is_page).await {
                    Ok(begun) => hold.insert(begun),
                    Err(answer) => return not_serving(&answer, is_page),
                },
            };
            match timeout(hold.left(), self.flights.wait(&call.route.key)).await {
                Ok(Outcome::Serves) if hold.left() > Duration::ZERO => {}
                Ok(outcome) => return not_serving(&Self::refused(outcome, &now.value), is_page),
                Err(_) if is_page => {
                    return Done::new(Ending::NotServing, answer::progress_page(&call.route.key.name));
                }
                Err(_) => return not_serving(&late(&now.value), false),
            }
        }
    }

    async fn try_pod(
        &self,
        call: &mut Call,
        upload: &Upload,
        person: &Person,
        workspace: &Entry<Reachable>,
    ) -> Attempt {
        let Some(target) = target(&workspace.value) else { return Attempt::NotServing };
        let key = &call.route.key;
        let audience = audience(&key.namespace, &key.name, &workspace.uid, &target.pod_uid);
        match self.tokens.authorization(&person.user, audience, Timestamp::now()).await {
            Ok(authorization) => self.forwarding.attempt(call, upload, &target, &authorization).await,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "no token for a pod can be signed");
                let text = "the gateway cannot sign tokens";
                Attempt::Failed(Answer::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text))
            }
        }
    }

    /// Whether this request waits, and for how long.
    async fn begin_hold(
        &self,
        call: &Call,
        upload: &Upload,
        workspace: &Reachable,
        is_page: bool,
    ) -> Result<Hold<'_>, Answer> {
        let waking = match waking::wakes(&call.method, &call.route.rest, &call.headers, upload.is_some()) {
            Waking::Yes => true,
            Waking::No => false,
            Waking::UnlessRestored => upload.peek().await.is_some_and(|body| !waking::is_restore(&body)),
        };
        if !waking || (workspace.wake_mode == WakeMode::Manual && workspace.run_policy == RunPolicy::OnDemand) {
            return Err(asleep(workspace));
        }
        let Ok(permit) = self.waiting.try_acquire() else {
            let text = "too many requests wait for their workspaces";
            return Err(Answer::new(StatusCode::SERVICE_UNAVAILABLE, "rate_limited", text).after(5));
        };
        let limit = if is_page { PAGE_AFTER } else { workspace.wake_timeout };
        self.metrics.hold_began();
        Ok(Hold { began: Instant::now(), limit, metrics: &self.metrics, _permit: permit })
    }
}

/// A request that waits.
struct Hold<'a> {
    began: Instant,
    limit: Duration,
    metrics: &'a GatewayMetrics,
    _permit: SemaphorePermit<'a>,
}

impl Hold<'_> {
    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.began.elapsed())
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.metrics.hold_ended(self.began.elapsed());
    }
}

fn not_serving(answer: &Answer, is_page: bool) -> Done {
    let ending = if answer.code == "rate_limited" { Ending::Overloaded } else { Ending::NotServing };
    Done::new(ending, if is_page { answer.page() } else { answer.json() })
}

/// To whoever does not wake.
fn asleep(workspace: &Reachable) -> Answer {
    let (state, text) = match workspace.phase {
        None | Some(Phase::Sleeping | Phase::Stopped) => {
            ("sleeping", "the workspace sleeps; this request does not wake it")
        }
        Some(Phase::Stopping) => ("stopping", "the workspace is stopping; this request does not wake it"),
        _ => ("starting", "the workspace does not serve at present"),
    };
    Answer::new(StatusCode::SERVICE_UNAVAILABLE, state, text).in_state(state).after(5)
}

/// To whoever waited in vain.
fn late(workspace: &Reachable) -> Answer {
    let seconds = workspace.wake_timeout.as_secs();
    let text = format!("the workspace did not serve within {seconds} s; it may be ready in a moment");
    Answer::new(StatusCode::SERVICE_UNAVAILABLE, "starting", text).in_state("starting").after(5)
}
