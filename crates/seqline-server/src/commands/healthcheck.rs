//! `seqline healthcheck`: asks a running server as a service manager would, without another program on the machine.

use super::configuration;
use crate::cli::HealthcheckArgs;
use crate::failure::Failure;
use crate::ops::probe;
use crate::output;

/// Prints what the server says. Exit code 0 when it is well, 3 when it is not or does not answer.
pub(crate) async fn run(args: &HealthcheckArgs) -> Result<(), Failure> {
    let address = match args.address {
        Some(address) => address,
        None => configuration(&args.config)?.ops.listen,
    };
    if address.port() == 0 {
        return Err(Failure::Usage(
            "ops.listen takes a free port: give --address with the one that the log of the server names"
                .to_owned(),
        ));
    }
    let path = if args.live { "/livez" } else { "/readyz" };
    let asked = tokio::time::timeout(args.timeout, probe::get(address, path)).await;
    let answer = match asked {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return Err(Failure::Unavailable(format!("no server answers at {address}: {error}")));
        }
        Err(_) => {
            return Err(Failure::Unavailable(format!("the server at {address} does not answer in time")));
        }
    };
    output::line(answer.body)?;
    if answer.status.is_success() {
        return Ok(());
    }
    Err(Failure::Unavailable(format!(
        "the server at {address} is not {}",
        if args.live { "alive" } else { "ready" }
    )))
}
