//! Who may do something with the consumers of an agent: the agent, and nobody else.

use seqline::access::{self, PrincipalKind};
use seqline::agent::AgentConsumer;

use crate::api::problem::Reason;
use crate::api::{Api, Caller, Code, Problem};

/// The consumer, if who asks is its agent. Whoever cannot know of the agent is told that there is nothing, and operators, who can, that it is not
/// for them.
pub(super) async fn consumer(
    api: &Api,
    caller: &Caller,
    agent: &str,
    name: &str,
) -> Result<AgentConsumer, Problem> {
    let access = &caller.access;
    let itself = access.principal == agent;
    if itself && access.kind == PrincipalKind::Agent {
        return AgentConsumer::new(agent, name).map_err(|error| {
            Problem::new(Code::ValidationFailed, error.to_string()).at("/consumer", "not a name")
        });
    }
    let known = itself
        || access.rights.operate
            && api
                .database
                .ask(async |connection| access::of_principal(connection, agent).await)
                .await?
                .is_some();
    if known {
        return Err(Problem::new(Code::Forbidden, "only an agent itself consumes its events")
            .because(Reason::SubjectKindNotAllowed));
    }
    Err(Problem::not_found("there is no such agent that you may see"))
}
