//! `perilune chat`: a conversation in the terminal, streamed, with a local model or a server.
//!
//! A local model is served on a free local port and talked to over HTTP like any other, so that there is one client.
//! Reasoning is shown dimmed on a terminal; where output is piped it goes to standard error, the answer to standard
//! output. `/reset` forgets the conversation; `/quit`, the end of input or a closed output leaves. Where nobody sits at the
//! keyboard the first question without an answer ends the program with its error.

use std::io::{BufRead, BufReader, ErrorKind, IsTerminal, Write};

use serde_json::{Value, json};

use crate::cli::ChatArgs;
use crate::error::ServerError;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Why a question got no answer.
#[derive(Debug)]
enum Unanswered {
    /// Something failed.
    Failed(ServerError),
    /// Nobody reads any more.
    OutputClosed,
}

impl From<ServerError> for Unanswered {
    fn from(error: ServerError) -> Self {
        Unanswered::Failed(error)
    }
}

/// Talks with the server at `url` until input or output ends.
///
/// # Errors
/// `Answer` where the server cannot be reached at the start; `Io` where input or output fails; without a terminal also
/// what the first unanswered question failed with.
pub fn chat(args: &ChatArgs, url: &str) -> Result<(), ServerError> {
    let client = Client::connect(url)?;
    let on_terminal = std::io::stdin().is_terminal();
    if on_terminal {
        eprintln!("{} at {url}; /reset forgets, /quit leaves", client.model);
    }
    let mut history = History::new(args.system.as_deref());
    let mut screen = Screen::of_process();
    for line in prompts(on_terminal) {
        match line.map_err(|source| ServerError::Io { what: "cannot read input".to_owned(), source })?.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            "/reset" => history = History::new(args.system.as_deref()),
            question => {
                history.push("user", question);
                match client.answer(args, &history, &mut screen) {
                    Ok(answer) => history.0.push(answer),
                    Err(Unanswered::OutputClosed) => break,
                    Err(Unanswered::Failed(error)) if !on_terminal => return Err(error),
                    // At a terminal the question is forgotten, so that the conversation can go on.
                    Err(Unanswered::Failed(error)) => {
                        eprintln!("{error}");
                        history.0.pop();
                    }
                }
            }
        }
    }
    Ok(())
}

/// Lines of input, with a prompt before each on a terminal.
fn prompts(on_terminal: bool) -> impl Iterator<Item = std::io::Result<String>> {
    let mut lines = std::io::stdin().lines();
    std::iter::from_fn(move || {
        if on_terminal {
            eprint!("> ");
        }
        lines.next()
    })
}

/// The messages so far.
struct History(Vec<Value>);

impl History {
    fn new(system: Option<&str>) -> Self {
        let mut history = History(Vec::new());
        if let Some(text) = system {
            history.push("system", text);
        }
        history
    }

    fn push(&mut self, role: &str, content: &str) {
        self.0.push(json!({"role": role, "content": content}));
    }
}

struct Client {
    agent: ureq::Agent,
    url: String,
    model: String,
}

impl Client {
    fn connect(url: &str) -> Result<Self, ServerError> {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let agent = ureq::Agent::new_with_config(config);
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let unreachable = |error: ureq::Error| ServerError::Answer(format!("{base} cannot be reached: {error}"));
        let mut response = agent.get(format!("{base}/v1/models")).call().map_err(unreachable)?;
        let models: Value = response.body_mut().read_json().map_err(unreachable)?;
        let model = models["data"][0]["id"].as_str().map(str::to_owned);
        let model = model.ok_or_else(|| ServerError::Answer(format!("{base} serves no model: {models}")))?;
        Ok(Client { agent, url: base, model })
    }

    /// Streams one answer to the screen and returns it as a message.
    fn answer(&self, args: &ChatArgs, history: &History, screen: &mut Screen) -> Result<Value, Unanswered> {
        let body = request(args, &self.model, &history.0);
        let failed = |error: ureq::Error| ServerError::Answer(format!("{} did not answer: {error}", self.url));
        let sent = self.agent.post(format!("{}/v1/chat/completions", self.url)).send_json(&body);
        let mut response = sent.map_err(failed)?;
        if !response.status().is_success() {
            let reply: Value = response.body_mut().read_json().map_err(failed)?;
            return Err(ServerError::Answer(message_of(&reply)).into());
        }
        show(BufReader::new(response.body_mut().as_reader()), screen)
    }
}

fn request(args: &ChatArgs, model: &str, messages: &[Value]) -> Value {
    let mut body = json!({"model": model, "messages": messages, "stream": true});
    let options = [
        ("reasoning_effort", args.effort.clone().map(Value::from)),
        ("temperature", args.temperature.map(Value::from)),
        ("max_tokens", args.max_tokens.map(Value::from)),
        ("seed", args.seed.map(Value::from)),
    ];
    for (key, value) in options {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    body
}

/// Reads a stream of chunks to its end; the answer as a message.
fn show(events: impl BufRead, screen: &mut Screen) -> Result<Value, Unanswered> {
    let (mut reasoning, mut content) = (String::new(), String::new());
    for line in events.lines() {
        let line = line.map_err(|source| ServerError::Io { what: "the answer broke off".to_owned(), source })?;
        let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
        let chunk: Value = serde_json::from_str(data)
            .map_err(|error| ServerError::Answer(format!("the server sent what is no JSON: {error}")))?;
        if chunk.get("error").is_some() {
            screen.end().map_err(unshown)?;
            return Err(ServerError::Answer(message_of(&chunk)).into());
        }
        let delta = &chunk["choices"][0]["delta"];
        if let Some(text) = delta["reasoning_content"].as_str() {
            reasoning.push_str(text);
            screen.reasoning(text).map_err(unshown)?;
        }
        if let Some(text) = delta["content"].as_str() {
            content.push_str(text);
            screen.content(text).map_err(unshown)?;
        }
    }
    screen.end().map_err(unshown)?;
    Ok(json!({"role": "assistant", "content": content, "reasoning_content": reasoning}))
}

/// What could not be written.
fn unshown(source: std::io::Error) -> Unanswered {
    match source.kind() {
        ErrorKind::BrokenPipe => Unanswered::OutputClosed,
        _ => ServerError::Io { what: "cannot write the answer".to_owned(), source }.into(),
    }
}

fn message_of(reply: &Value) -> String {
    reply["error"]["message"].as_str().map_or_else(|| reply.to_string(), str::to_owned)
}

/// Where an answer is shown.
struct Screen {
    answer: Box<dyn Write>,
    /// `None`: reasoning goes where the answer goes, dimmed.
    aside: Option<Box<dyn Write>>,
    showing: Showing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Showing {
    Nothing,
    Reasoning,
    Answer,
}

impl Screen {
    fn of_process() -> Self {
        let aside: Option<Box<dyn Write>> = match std::io::stdout().is_terminal() {
            true => None,
            false => Some(Box::new(std::io::stderr())),
        };
        Screen { answer: Box::new(std::io::stdout()), aside, showing: Showing::Nothing }
    }

    fn reasoning(&mut self, text: &str) -> std::io::Result<()> {
        let begins = self.showing != Showing::Reasoning;
        self.showing = Showing::Reasoning;
        match &mut self.aside {
            Some(aside) => write_now(aside, text),
            None if begins => write_now(&mut self.answer, &format!("{DIM}{text}")),
            None => write_now(&mut self.answer, text),
        }
    }

    fn content(&mut self, text: &str) -> std::io::Result<()> {
        self.leave_reasoning()?;
        self.showing = Showing::Answer;
        write_now(&mut self.answer, text)
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.leave_reasoning()?;
        self.showing = Showing::Nothing;
        write_now(&mut self.answer, "\n")
    }

    fn leave_reasoning(&mut self) -> std::io::Result<()> {
        match (self.showing, &mut self.aside) {
            (Showing::Reasoning, Some(aside)) => write_now(aside, "\n"),
            (Showing::Reasoning, None) => write_now(&mut self.answer, &format!("{PLAIN}\n")),
            _ => Ok(()),
        }
    }
}

fn write_now(to: &mut dyn Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning_content\":\"hm\"}}]}\n\n",
        ": ping\n\n",
        "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"!\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"4\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"2\"},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn a_terminal_shows_reasoning_dimmed() {
        let paper = Paper::default();
        let mut screen = Screen { answer: Box::new(paper.clone()), aside: None, showing: Showing::Nothing };
        let answer = show(STREAM.as_bytes(), &mut screen).unwrap();
        assert_eq!(paper.text(), "\x1b[2mhm!\x1b[0m\n42\n");
        assert_eq!(answer, json!({"role": "assistant", "content": "42", "reasoning_content": "hm!"}));
    }

    #[test]
    fn a_pipe_gets_the_answer_alone() {
        let (answer, aside) = (Paper::default(), Paper::default());
        let mut screen = Screen {
            answer: Box::new(answer.clone()),
            aside: Some(Box::new(aside.clone())),
            showing: Showing::Nothing,
        };
        show(STREAM.as_bytes(), &mut screen).unwrap();
        assert_eq!((answer.text().as_str(), aside.text().as_str()), ("42\n", "hm!\n"));
    }

    #[test]
    fn an_error_in_the_stream_is_an_error_here() {
        let mut screen = Screen { answer: Box::new(Paper::default()), aside: None, showing: Showing::Nothing };
        let stream = "data: {\"error\":{\"message\":\"no luck\"}}\n\ndata: [DONE]\n\n";
        let error = show(stream.as_bytes(), &mut screen).unwrap_err();
        assert!(matches!(error, Unanswered::Failed(error) if error.to_string() == "no luck"));
    }

    #[test]
    fn a_closed_output_is_told_from_a_failure() {
        struct Closed(ErrorKind);
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(self.0.into())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let outcome = |kind| {
            let mut screen = Screen { answer: Box::new(Closed(kind)), aside: None, showing: Showing::Nothing };
            show(STREAM.as_bytes(), &mut screen).unwrap_err()
        };
        assert!(matches!(outcome(ErrorKind::BrokenPipe), Unanswered::OutputClosed));
        assert!(matches!(outcome(ErrorKind::StorageFull), Unanswered::Failed(_)));
    }
}
