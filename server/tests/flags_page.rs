//! `docs/flags.md` says of every flag what the command line says: the page is made from it, and stale it fails here.
//!
//! `PERILUNE_WRITE_DOCS=1 cargo test --release --package perilune-server --test flags_page` writes it anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use clap::{Arg, ArgAction, Args, Command, CommandFactory};
use perilune_server::cli::{Cli, ModelArgs};

const HEAD: &str = "\
# Flags

Made from the command line by a test (`server/tests/flags_page.rs`); do not edit. `perilune COMMAND --help` says the same.

Settings of `serve` come from flags, from the environment and from a file (`--config`, keys named as the flags), in this
order of precedence; `perilune serve --print-config` prints what they come to and where each comes from.
";
/// Only in a binary that is built with the feature `train`: the page is of the default one.
const NOT_BY_DEFAULT: &str = "train-draft";

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/flags.md");
    let page = page();
    if std::env::var_os("PERILUNE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = page.lines().zip(found.lines()).find(|(new, old)| new != old);
    assert!(page == found, "docs/flags.md is stale (the header of this test says how to write it): {differs:?}");
}

fn page() -> String {
    let shared = ModelArgs::augment_args(Command::new("model"));
    let shared_ids: BTreeSet<String> = shared.get_arguments().map(|arg| arg.get_id().to_string()).collect();
    let mut cli = Cli::command();
    cli.build();
    let commands = || cli.get_subcommands().filter(|found| !["help", NOT_BY_DEFAULT].contains(&found.get_name()));
    let takes_model = |found: &&Command| found.get_arguments().any(|arg| arg.get_id() == "mem_fraction");
    let users: Vec<String> = commands().filter(takes_model).map(|found| format!("`{}`", found.get_name())).collect();
    let mut page = format!("{HEAD}\n## Which model, on what\n\nFlags of {}.\n", users.join(", "));
    table(&mut page, shared.get_arguments());
    for command in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        write!(page, "\n## {}\n\n{about}", command.get_name()).unwrap();
        let more = if takes_model(&command) { ". Besides the flags above:" } else { "." };
        writeln!(page, "{more}").unwrap();
        table(&mut page, command.get_arguments().filter(|arg| !shared_ids.contains(arg.get_id().as_str())));
    }
    page
}

fn table<'a>(page: &mut String, args: impl Iterator<Item = &'a Arg>) {
    page.push_str("\n| flag | default | environment | |\n| --- | --- | --- | --- |\n");
    for arg in args.filter(|arg| !["help", "version"].contains(&arg.get_id().as_str())) {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let default = match arg.get_action() {
            ArgAction::SetTrue => String::new(),
            _ => arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(","),
        };
        let environment = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        let values = values(arg);
        writeln!(page, "| {} | {} | {environment} | {help}{values} |", name(arg), quoted(&default)).unwrap();
    }
}

fn name(arg: &Arg) -> String {
    let value = match (arg.get_action(), arg.get_value_names()) {
        (ArgAction::SetTrue, _) | (_, None) => String::new(),
        (_, Some(names)) => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
    };
    let long = arg.get_long().map(|long| format!("--{long}")).unwrap_or_default();
    let short = arg.get_short().map(|short| format!(", `-{short}`")).unwrap_or_default();
    format!("`{}`{short}", format!("{long} {value}").trim())
}

/// What is to choose from.
fn values(arg: &Arg) -> String {
    if arg.get_action().takes_values() && !arg.is_hide_possible_values_set() {
        let of_bool = |names: &[String]| names == ["`true`", "`false`"];
        let names: Vec<String> =
            arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        if !names.is_empty() && !of_bool(&names) {
            return format!(". One of {}", names.join(", "));
        }
    }
    String::new()
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}
