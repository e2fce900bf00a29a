//! Measures the gateway as people run it, beside nginx and beside itself, in one run, and prints one table.
//!
//! Real processes over loopback: the release binary as gateway and as agent, nginx for what the kernel can do, and a
//! reader that costs as little as possible. What each row means stands in `benches/README.md`.

mod client;
mod delay;
mod figure;
mod fleet;
mod heartbeat;
mod machine;
mod nginx;
mod process;
mod proxy;
mod rows;
mod stage;
mod tunnel;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use figure::Table;
use stage::Place;

/// Measure a gateway, its agent and nginx side by side.
#[derive(Debug, Parser)]
struct Args {
    /// Only rows whose name contains this
    filter: Option<String>,
    /// Smaller and shorter: shows that everything works, says little about speed
    #[arg(long)]
    quick: bool,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure this `sluice` instead of the one that cargo built: two builds on one machine
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Keep the temporary folder with the processes' logs, and print where it is
    #[arg(long)]
    keep: bool,
    /// What cargo says to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let place = Place::new(args.binary.as_deref(), args.quick, args.keep)?;
    let machine = machine::describe(
        &place.sluice,
        place.nginx(),
        tunnel::describe(),
        format!("{} bytes on {}", place.file_bytes, place.dir().display()),
    );
    println!("{machine}\n");
    let mut table = Table::default();
    let mut busiest = 0.0_f64;
    for row in rows::ALL {
        if args.filter.as_ref().is_some_and(|filter| !row.name.contains(filter.as_str())) {
            continue;
        }
        let load = machine::load();
        busiest = busiest.max(load);
        eprintln!("measuring {} … (load {load})", row.name);
        // One row that cannot be measured is no reason to lose the others.
        match (row.measure)(&place) {
            Ok(figures) => table.add(row.name, figures),
            Err(error) => table.fail(row.name, &error),
        }
    }
    println!("{table}");
    if busiest > machine::cores() {
        println!(
            "The machine was busy (load {busiest}): what needs few processors suffers as much as what needs more."
        );
    }
    if let Some(file) = &args.json {
        let json = serde_json::to_vec_pretty(&table.to_json(&machine, args.quick))?;
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    table.outcome()
}
