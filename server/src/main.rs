//! The `perilune` binary: reads the command line and hands over to the library.

use std::io::{ErrorKind, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::http::StatusCode;
use perilune_server::access::Keys;
use perilune_server::cli::{self, ChatArgs, Command, CommandLine, ServeArgs};
use perilune_server::error::in_one_line;
use perilune_server::journal::JournalSettings;
use perilune_server::lifecycle::Phase;
use perilune_server::load::{LoadOptions, load};
use perilune_server::model_dir::model_name;
use perilune_server::progress::Show;
use perilune_server::request_log::RequestLog;
use perilune_server::tls::TlsFiles;
use perilune_server::{
    Overload, ReasoningNames, Server, Settings, bench, bench_model, bench_serve, chat_cli, convert, inspect, simulate,
};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let CommandLine { cli, printed } = match cli::read(&args) {
        Ok(Ok(line)) => line,
        Ok(Err(error)) => error.exit(),
        Err(error) => {
            eprintln!("error: {}", in_one_line(&error));
            return ExitCode::FAILURE;
        }
    };
    if let Some(settings) = printed {
        return outcome(print(&settings));
    }
    let filter = EnvFilter::try_from_env("PERILUNE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let to_terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(to_terminal).init();
    let done = match cli.command {
        None => serve(&cli.serve),
        Some(Command::Serve(args)) => serve(&args),
        Some(Command::Chat(args)) => chat(&args),
        Some(Command::Inspect(args)) => inspect::inspect(&args).map_err(Into::into).and_then(|report| print(&report)),
        Some(Command::Bench(args)) => bench::run(&args).map_err(Into::into).and_then(|report| print(&report)),
        Some(Command::BenchServe(args)) => {
            bench_serve::run(&args).map_err(Into::into).and_then(|report| print(&report))
        }
        Some(Command::SimulateCache(args)) => {
            simulate::run(&args).map_err(Into::into).and_then(|report| print(&report))
        }
        Some(Command::Convert(args)) => convert::run(&args).map_err(Into::into),
        Some(Command::BenchModel(args)) => bench_model::write(&args).map_err(Into::into),
        #[cfg(feature = "train")]
        Some(Command::TrainDraft(args)) => {
            perilune_server::train_draft::run(&args).map_err(Into::into).and_then(|report| print(&report))
        }
    };
    outcome(done)
}

fn outcome(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", in_one_line(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Prints a report; a reader that has seen enough is no fault.
fn print(report: &str) -> Result<()> {
    match std::io::stdout().write_all(report.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write the report"),
        _ => Ok(()),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the network threads")
}

fn serve(args: &ServeArgs) -> Result<()> {
    let mut options = LoadOptions::from_args(&args.model)?;
    options.token_ids_only = args.skip_tokenizer_init;
    let settings = settings(args, &options)?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let server = Server::bind(SocketAddr::new(args.host, args.port), settings).await?;
        server.shutdown().on_signals()?;
        let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
        tracing::info!(model = %options.dir.display(), "listening on {scheme}://{}", server.local_addr());
        server.run(move || load(&options, Show::Stderr)).await
    });
    // Loading that was interrupted is left behind.
    runtime.shutdown_background();
    Ok(outcome?)
}

fn settings(args: &ServeArgs, options: &LoadOptions) -> Result<Settings> {
    let model_names = match args.served_model_name.as_slice() {
        [] => vec![model_name(&options.dir)],
        names => names.to_vec(),
    };
    let mut users = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        users.extend(Keys::read(path)?);
    }
    let keys = Keys::new(users, args.admin_api_key.clone())?;
    Ok(Settings {
        model_names,
        max_body_bytes: args.max_body_bytes,
        body_timeout: (args.body_timeout > 0).then(|| Duration::from_secs(args.body_timeout)),
        max_concurrent_requests: (args.max_concurrent_requests > 0).then_some(args.max_concurrent_requests),
        max_queue_time: (args.max_queue_time > 0).then(|| Duration::from_secs(args.max_queue_time)),
        overload: Overload {
            status: StatusCode::from_u16(args.overload_status.code()).context("--overload-status")?,
            retry_after_s: args.retry_after,
        },
        drain_timeout: Duration::from_secs(args.drain_timeout),
        ping_interval: (args.ping_interval > 0).then(|| Duration::from_secs(args.ping_interval)),
        stall_timeout: Duration::from_secs(args.stall_timeout),
        profile: args.api_profile,
        reasoning_names: if args.reasoning_twice { ReasoningNames::Both } else { ReasoningNames::One },
        metrics_compat: args.metrics_compat,
        journal: JournalSettings { access_log: args.access_log, traces_endpoint: args.otlp_traces_endpoint.clone() },
        request_log: args.request_log.as_deref().map(RequestLog::open).transpose()?,
        tls: args.tls_cert.clone().zip(args.tls_key.clone()).map(|(cert, key)| TlsFiles { cert, key }),
        keys: if args.open_metrics { keys.with_open_metrics() } else { keys },
    })
}

/// Chats with `--url`, or with a local model served on a free local port.
fn chat(args: &ChatArgs) -> Result<()> {
    if let Some(url) = &args.url {
        return Ok(chat_cli::chat(args, url)?);
    }
    let options = LoadOptions::from_args(&args.model)?;
    let settings = Settings { model_names: vec![model_name(&options.dir)], ..Settings::default() };
    let runtime = runtime()?;
    let server = runtime.block_on(Server::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), settings))?;
    let (addr, mut phase) = (server.local_addr(), server.app().lifecycle.watch());
    let running = runtime.spawn(server.run(move || load(&options, Show::Stderr)));
    let ready = runtime.block_on(async {
        tokio::select! {
            outcome = running => Err(outcome),
            _ = phase.wait_for(|phase| *phase == Phase::Ready) => Ok(()),
        }
    });
    match ready {
        Ok(()) => {}
        Err(outcome) => return Ok(outcome.context("the local server ended")??),
    }
    let outcome = chat_cli::chat(args, &format!("http://{addr}"));
    runtime.shutdown_background();
    Ok(outcome?)
}
