//! `--config FILE`: values of `serve` in a TOML file. Flags win over the environment, and that over the file.
//!
//! Keys are the flags' names without the dashes in front (`max-running-requests`, or with underscores). What the file says
//! becomes the default of its flag, so that a value goes through the same checks wherever it stands.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command, FromArgMatches};

use super::{Cli, command};
use crate::error::ServerError;

const FLAG: &str = "--config";
const VARIABLE: &str = "PERILUNE_CONFIG";
/// Flags whose values are not to be shown.
const SECRET: &[&str] = &["api_key", "admin_api_key"];
/// Flags that mean nothing in a file.
const NOT_IN_FILES: &[&str] = &["config", "print_config", "help", "version"];

/// Settings that a file gives, by their ids.
type Given = BTreeSet<String>;

/// What a command line comes to.
#[derive(Debug)]
pub struct CommandLine {
    /// The flags.
    pub cli: Cli,
    /// The settings of `serve`, where they are to be printed.
    pub printed: Option<String>,
}

/// Reads a command line, the environment, and the file that one of them names.
///
/// # Errors
/// What clap says (help and version included); a file that cannot be read or says something unknown.
pub fn read(args: &[OsString]) -> Result<Result<CommandLine, clap::Error>, ServerError> {
    let (command, given) = match file_named(args) {
        Some(path) => with_defaults(command(), &path)?,
        None => (command(), Given::new()),
    };
    Ok(parse((command, given), args))
}

fn parse((command, given): (Command, Given), args: &[OsString]) -> Result<CommandLine, clap::Error> {
    let matches = command.clone().try_get_matches_from(args)?;
    let cli = Cli::from_arg_matches(&matches)?;
    let of_serve = matches.subcommand_matches("serve").unwrap_or(&matches);
    let asked = matches.subcommand_name().is_none_or(|name| name == "serve") && of_serve.get_flag("print_config");
    let printed = asked.then(|| print((&command, &given), of_serve));
    Ok(CommandLine { cli, printed })
}

/// The file that the command line of `serve` names, else the one of the environment. Other commands have no such file.
fn file_named(args: &[OsString]) -> Option<PathBuf> {
    let command = args.get(1).map(|arg| arg.to_string_lossy()).filter(|arg| !arg.starts_with('-'));
    if command.is_some_and(|command| command != "serve") {
        return None;
    }
    let mut args = args.iter().skip(1).map(|arg| arg.to_string_lossy());
    while let Some(arg) = args.next() {
        if arg == FLAG {
            return args.next().map(|path| PathBuf::from(path.as_ref()));
        }
        if let Some(path) = arg.strip_prefix("--config=") {
            return Some(PathBuf::from(path));
        }
    }
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn with_defaults(mut command: Command, path: &Path) -> Result<(Command, Given), ServerError> {
    let io = |source| ServerError::Io { what: format!("cannot read {}", path.display()), source };
    let text = std::fs::read_to_string(path).map_err(io)?;
    let wrong = |value: String, rule: String| ServerError::Flag { flag: FLAG, value, rule };
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| wrong(path.display().to_string(), error.to_string()))?;
    let mut given = Given::new();
    for (key, value) in table {
        let id = key.replace('-', "_");
        let place = format!("`{key}` in {}", path.display());
        let known = command.get_arguments().any(|arg| arg.get_id() == id.as_str());
        if !known || NOT_IN_FILES.contains(&id.as_str()) {
            return Err(wrong(place, "there is no such setting; see `perilune serve --help`".to_owned()));
        }
        let text = written(&value)
            .ok_or_else(|| wrong(place, "it must be a string, a number, true, false, or a list of those".to_owned()))?;
        let set = |arg: clap::Arg| arg.default_value(text.clone());
        command = command.mut_arg(&id, set).mut_subcommand("serve", |serve| serve.mut_arg(&id, set));
        given.insert(id);
    }
    Ok((command, given))
}

fn written(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Array(items) => Some(items.iter().map(written).collect::<Option<Vec<_>>>()?.join(",")),
        _ => None,
    }
}

/// The settings as a file that would give them, each with where it comes from.
fn print((command, given): (&Command, &Given), matches: &ArgMatches) -> String {
    let mut out = String::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if NOT_IN_FILES.contains(&id) {
            continue;
        }
        let values: Vec<String> =
            matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect();
        let source = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "flag",
            Some(ValueSource::EnvVariable) => "environment",
            _ if given.contains(id) => "file",
            _ => "default",
        };
        let shown = |text: &String| if SECRET.contains(&id) { "***".to_owned() } else { text.clone() };
        let value = match (arg.get_action(), values.as_slice()) {
            (_, []) => {
                out.push_str(&format!("# {} is not set\n", id.replace('_', "-")));
                continue;
            }
            (ArgAction::Append, values) => {
                let list: Vec<toml::Value> = values.iter().map(|text| toml::Value::String(shown(text))).collect();
                toml::Value::Array(list)
            }
            (_, [value, ..]) => typed(&shown(value)),
        };
        out.push_str(&format!("{} = {value} # {source}\n", id.replace('_', "-")));
    }
    out
}

fn typed(text: &str) -> toml::Value {
    if let Ok(flag) = text.parse::<bool>() {
        return toml::Value::Boolean(flag);
    }
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(number), _) => toml::Value::Integer(number),
        (_, Ok(number)) if number.is_finite() => toml::Value::Float(number),
        _ => toml::Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn line(args: &[&str], text: &str) -> CommandLine {
        let file = file(text);
        let path = file.path().to_str().unwrap();
        let args: Vec<OsString> =
            ["perilune"].iter().chain(args).chain(&["--config", path]).map(OsString::from).collect();
        read(&args).unwrap().unwrap()
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "port = 9001\nmem-fraction = 0.5\nserved_model_name = [\"a\", \"b\"]\ndisable-prefix-cache = true\nthreads = 3\n";
        for start in [&[][..], &["serve"]] {
            let command_line = line(&[start, &["--port", "9002"]].concat(), text);
            let args = match command_line.cli.command {
                Some(super::super::Command::Serve(args)) => *args,
                _ => command_line.cli.serve,
            };
            assert_eq!((args.port, args.model.mem_fraction, args.model.threads), (9002, 0.5, Some(3)));
            assert_eq!(args.served_model_name, ["a", "b"]);
            assert!(args.model.disable_prefix_cache);
            assert_eq!(args.retry_after, 1);
        }
    }

    #[test]
    fn what_the_file_says_is_checked_like_flags() {
        for (text, expected) in [
            ("ports = 1", "`ports`"),
            ("config = \"x\"", "`config`"),
            ("port = {a = 1}", "a list of those"),
            ("port = ", "--config"),
        ] {
            let file = file(text);
            let args = ["perilune", "--config", file.path().to_str().unwrap()].map(OsString::from);
            let error = read(&args).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let file = file("mem-fraction = 7");
        let args = ["perilune", "--config", file.path().to_str().unwrap()].map(OsString::from);
        assert!(read(&args).unwrap().unwrap_err().to_string().contains("above 0 and at most 1"));
        let missing = ["perilune", "--config=/no/such/file"].map(OsString::from);
        assert!(read(&missing).unwrap_err().to_string().contains("/no/such/file"));
    }

    #[test]
    fn what_is_printed_reads_back_and_shows_no_key() {
        let text = "api-key = [\"sesame\"]\nport = 9001\nhost = \"0.0.0.0\"\n";
        let printed = line(&["--print-config", "--threads", "2"], text).printed.unwrap();
        assert!(!printed.contains("sesame") && printed.contains("***"), "{printed}");
        for line in
            ["port = 9001 # file", "threads = 2 # flag", "api-key = [\"***\"] # file", "retry-after = 1 # default"]
        {
            assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
        }
        let again = line(&[], &printed);
        assert_eq!((again.cli.serve.port, again.cli.serve.model.threads), (9001, Some(2)));
        assert!(again.printed.is_none());
    }
}
