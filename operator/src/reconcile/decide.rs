//! One decision, with the questions that it asks first.
//!
//! Owns who answers each question and what is remembered of the answer. Must not know how decisions are carried out.

use std::sync::PoisonError;

use jiff::Timestamp;

use crate::{
    agent::Target,
    cluster::Workspace,
    plan::{Answer, LookUp, Observed, Plan, Seen, plan},
};

use super::{ReconcileError, Reconciler, memory::Memory};

/// A decision asks at most once for each kind of question, of which there are five.
const QUESTIONS: usize = 6;

impl Reconciler {
    /// Plans until no question is left.
    pub(super) async fn decide(
        &self,
        workspace: &Workspace,
        memory: &mut Memory,
        observed: &mut Observed,
        now: Timestamp,
    ) -> Result<Plan, ReconcileError> {
        let pod_uid = match &observed.pod {
            Seen::Ours(pod) => Some(pod.uid.as_str()),
            Seen::Unconfirmed | Seen::Missing | Seen::Foreign(_) => None,
        };
        memory.refresh(observed.workspace.generation, pod_uid);
        observed.write_failure = memory.write_failure.as_ref().map(|remembered| remembered.failure.clone());
        observed.agent_readiness.clone_from(&memory.agent_readiness);
        observed.created_pod.clone_from(&memory.created_pod);
        observed.activity.clone_from(&memory.activity);
        observed.leading_since = self.leading_since;
        observed.spread_seconds = self.spread_seconds;
        for _ in 0..QUESTIONS {
            observed.idle_stops_paused = self.idle_stops_paused(now);
            let plan = plan(&self.config, observed, now);
            if plan.look_up.is_empty() {
                return Ok(plan);
            }
            for question in &plan.look_up {
                self.answer(workspace, memory, observed, question, now).await?;
            }
        }
        Err(ReconcileError::EndlessQuestions)
    }

    async fn answer(
        &self,
        workspace: &Workspace,
        memory: &mut Memory,
        observed: &mut Observed,
        question: &LookUp,
        now: Timestamp,
    ) -> Result<(), ReconcileError> {
        match question {
            LookUp::Live(children) => {
                for child in children {
                    self.cluster.observe_live(workspace, *child, observed).await?;
                }
            }
            LookUp::PodEvents { pod_uid } => {
                observed.pod_events = Some(self.cluster.pod_events(&workspace.key.namespace, pod_uid).await?);
            }
            LookUp::Node { name } => observed.node = Some(self.cluster.node(name).await?),
            LookUp::Drain(question) => {
                let key = &workspace.key;
                let target = Target { namespace: &key.namespace, name: &key.name, workspace_uid: &workspace.uid };
                let activity = self.agent.drain_if_idle(target, question, now).await;
                let answered = activity.answer != Answer::Unknown;
                self.answers.lock().unwrap_or_else(PoisonError::into_inner).note(answered, now);
                memory.activity = Some(activity);
                observed.activity.clone_from(&memory.activity);
            }
            LookUp::AgentReadiness { pod_uid, ip } => {
                memory.agent_readiness = Some(self.agent.readiness(pod_uid, ip, now).await);
                observed.agent_readiness.clone_from(&memory.agent_readiness);
            }
        }
        Ok(())
    }

    fn idle_stops_paused(&self, now: Timestamp) -> bool {
        let paused = self.answers.lock().unwrap_or_else(PoisonError::into_inner).paused(now);
        self.metrics.idle_stops_paused(paused);
        paused
    }
}
