//! What the command line takes, and how it refuses.

use clap::{ArgAction, Error};

use super::*;

fn refused(args: &[&str]) -> Error {
    command().try_get_matches_from(["perilune"].iter().chain(args)).unwrap_err()
}

#[test]
fn the_command_line_is_consistent() {
    command().debug_assert();
}

#[test]
fn serve_is_the_default() {
    let cli = Cli::try_parse_from(["perilune", "--port", "0", "--mem-fraction", "0.5"]).unwrap();
    assert!(cli.command.is_none());
    assert_eq!((cli.serve.port, cli.serve.model.mem_fraction), (0, 0.5));
    let cli = Cli::try_parse_from(["perilune", "serve", "--threads", "2"]).unwrap();
    assert!(matches!(cli.command, Some(Command::Serve(args)) if args.model.threads == Some(2)));
}

#[test]
fn bad_values_get_a_sentence() {
    let cases = [
        (["--mem-fraction", "1.5"], "above 0 and at most 1"),
        (["--threads", "0"], "an integer from 1"),
        (["--threads", "20000"], "invalid value '20000' for '--threads <N>': it must be an integer from 1 to 1024"),
        (
            ["--chunked-prefill-size", "1000000000"],
            "'--chunked-prefill-size <TOKENS>': it must be an integer from 1 to",
        ),
        (["--served-model-name", ""], "a name needs at least one character"),
        (["--served-model-name", "a,"], "a name needs at least one character"),
        (["--host", "no such host"], "an IP address or a name"),
        (["--drain-timeout", "18446744073709551615"], "an integer from 0 to"),
        (["--chunked-prefill-size", "-5"], "'--chunked-prefill-size <TOKENS>': it must be an integer from 1 to"),
        (["--port", "70000"], "65535"),
        (["--backend", "abacus"], "possible values"),
        (["--overload-status", "200"], "possible values"),
    ];
    for (args, rule) in cases {
        let error = refused(&args).to_string();
        assert!(error.contains(rule), "{args:?}: {error}");
    }
}

#[test]
fn the_time_after_the_drain_timeout_is_the_one_its_help_names() {
    let after = crate::lifecycle::LAST_WORDS + crate::drain::CLOSING;
    let help = Cli::command().render_long_help().to_string();
    assert!(help.contains(&format!("Up to {} seconds more", after.as_secs())), "{help}");
}

#[test]
fn a_chats_wishes_are_checked_before_it_begins() {
    let cases = [
        (["--effort", "foo"], "it must be one of none"),
        (["--temperature", "9"], "from 0 to 2"),
        (["--max-tokens", "0"], "an integer from 1"),
        (["--url", "127.0.0.1:8000"], "`http://`"),
    ];
    for (args, rule) in cases {
        let error = refused(&["chat", args[0], args[1]]);
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(rule), "{args:?}: {error}");
    }
}

/// Every flag with a number, of every command: the value is taken for one, and refused with its flag and what it must be.
#[test]
fn numbers_below_zero_are_refused_by_name() {
    let mut all = command();
    all.build();
    let mut num_flags = 0;
    for sub in all.get_subcommands().filter(|sub| sub.get_name() != "help") {
        for arg in sub.get_arguments().filter(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)) {
            let Some(flag) = arg.get_long().map(|long| format!("--{long}")) else { continue };
            let is_number = |text: &str| text.parse::<f64>().is_ok();
            let counts = ["N", "TOKENS", "MIB", "GIB", "SECONDS", "BYTES", "MS", "RANKS", "WORDS", "F"];
            let named = arg.get_value_names().is_some_and(|names| counts.contains(&names[0].as_str()));
            if !named && !arg.get_default_values().iter().any(|value| value.to_str().is_some_and(is_number)) {
                continue;
            }
            num_flags += 1;
            for value in ["-5", "-0.5"] {
                let error = refused(&[sub.get_name(), &flag, value]).to_string();
                assert!(error.contains(&format!("invalid value '{value}' for '{flag} <")), "{error}");
                assert!(
                    ["it must be", "is not in", "invalid digit", "possible values"]
                        .iter()
                        .any(|rule| error.contains(rule)),
                    "{error}"
                );
            }
        }
    }
    assert!(num_flags > 60, "{num_flags}");
}
