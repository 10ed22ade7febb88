//! `duewheel health` and `duewheel quotas`.

use std::io::{self, Write};

use super::failure::exit_code;
use super::remote::Remote;
use super::table::{self, cell, plain};
use super::{ClientCommand, CommandFailure, ServerArgs};
use clap::Args;

#[derive(Args, Debug)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for HealthArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let (healthy, health) = Remote::new(&self.server)?.get_any("/healthz")?;
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{health}")?;
        } else {
            for (name, value) in health.as_object().into_iter().flatten() {
                let text = value.as_str().map_or_else(|| value.to_string(), plain);
                writeln!(out, "{name:<22}{text}")?;
            }
        }
        if healthy { Ok(()) } else { Err(CommandFailure::Said(exit_code::FAILED)) }
    }
}

#[derive(Args, Debug)]
pub(super) struct QuotasArgs {
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for QuotasArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let answer = Remote::new(&self.server)?.get("/v1/quotas")?;
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{answer}")?;
            return Ok(());
        }
        let mut rows = Vec::new();
        for quota in answer["quotas"].as_array().into_iter().flatten() {
            for resource in ["messages", "bytes", "leases", "enqueues_per_second"] {
                let of = &quota[resource];
                if !of["limit"].is_null() {
                    rows.push(vec![
                        cell(quota, "prefix"),
                        resource.replace('_', " "),
                        cell(of, "limit"),
                        cell(of, "used"),
                        cell(of, "refused"),
                    ]);
                }
            }
        }
        table::print(&mut out, &["PREFIX", "RESOURCE", "LIMIT", "USED", "REFUSED"], &rows)?;
        Ok(())
    }
}
