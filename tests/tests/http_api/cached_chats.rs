//! Chats with tools, forms and thinking, whose prefixes come from the device, from host memory and from disk, drafted by
//! prompt lookup and by the demo's draft: every turn is what it is cold, undrafted and whole, bit for bit.

use std::path::PathBuf;

use perilune_engine::Prefixes;
use perilune_server::disk_cache::DiskCache;
use perilune_server::drafting::{DraftChoice, DraftOptions};
use perilune_server::load::LoadOptions;
use perilune_speculate::DraftLengths;
use perilune_tests::demo_dir;
use serde_json::{Value, json};

use crate::client::{post, stream, with};
use crate::grammar::{Choice, assemble, whole_choices};
use crate::server::TestServer;

const CHAT: &str = "/v1/chat/completions";
const CONTEXT: usize = 4096;

/// A turn as it is sent, and what must come of it.
struct Turn {
    body: Value,
    expected: Vec<Choice>,
    prompt_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Device,
    Host,
    Disk,
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn tool(name: &str, field: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {field: {"type": "string", "maxLength": 12}},
        "required": [field], "additionalProperties": false});
    json!({"type": "function",
        "function": {"name": name, "description": "Works something out.", "parameters": parameters, "strict": true}})
}

/// What is particular to a turn: free, a call that must come, an answer in a form, no thinking.
fn kind(turn: usize) -> Value {
    let schema = json!({"type": "object", "properties": {"pens": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["pens"], "additionalProperties": false});
    match turn % 4 {
        0 => json!({}),
        1 => json!({"tool_choice": "required", "max_tokens": 160}),
        2 => json!({"tool_choice": "none", "max_tokens": 160, "thinking": {"type": "disabled"},
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}}),
        _ => json!({"thinking": {"type": "disabled"}}),
    }
}

/// Twelve turns, worked out by a server that remembers nothing, drafts nothing and computes every prompt whole.
fn turns() -> Vec<Turn> {
    let cold = TestServer::demo(|options| {
        options.prefixes = Prefixes::Forget;
        options.chunked_prefill_size = CONTEXT;
        options.context_length = Some(CONTEXT);
    });
    let mut messages = vec![json!({"role": "system", "content": "You are a calm teacher of sums."})];
    let mut turns = Vec::new();
    for turn in 0..12 {
        let question = format!("There are {} boxes with {} pens each. How many pens?", 3 + turn, 2 + turn * turn);
        messages.push(json!({"role": "user", "content": question}));
        let mut body = json!({"messages": messages, "tools": [tool("calculate", "sum"), tool("look_up", "word")],
            "max_tokens": 48, "temperature": 0, "logprobs": true, "top_logprobs": 2});
        body.as_object_mut().unwrap().extend(kind(turn).as_object().unwrap().clone());
        let answer = post(cold.addr, CHAT, &body).ok();
        assert_eq!(cached(&answer), 0);
        let mut message = answer["choices"][0]["message"].clone();
        message.as_object_mut().unwrap().remove("reasoning_content");
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        messages.push(message);
        messages.extend(calls.iter().map(|call| json!({"role": "tool", "tool_call_id": call["id"], "content": "36"})));
        let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        turns.push(Turn { body, expected: whole_choices(&answer), prompt_tokens });
    }
    let called = turns.iter().filter(|turn| !turn.expected[0].tool_calls.is_empty()).count();
    assert!(called >= 2, "only {called} turns called a tool");
    let formed = turns.iter().filter(|turn| turn.expected[0].content.contains("\"pens\"")).count();
    assert!(formed >= 2, "only {formed} turns have the form");
    turns
}

/// A server that remembers in some place, with little memory where it is not the device.
struct Rig {
    tier: Tier,
    draft: Option<DraftChoice>,
    dir: tempfile::TempDir,
    server: TestServer,
}

impl Rig {
    fn new(tier: Tier, draft: Option<DraftChoice>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Self::start((tier, &draft), dir.path().to_owned());
        Rig { tier, draft, dir, server }
    }

    fn start((tier, draft): (Tier, &Option<DraftChoice>), dir: PathBuf) -> TestServer {
        TestServer::demo(|options: &mut LoadOptions| {
            options.drafts = DraftOptions { source: draft.clone(), num_drafts: None, lengths: DraftLengths::Fixed };
            options.context_length = Some(CONTEXT);
            match tier {
                Tier::Device => {}
                Tier::Host => (options.max_running_requests, options.host_cache_bytes) = (1, Some(1 << 30)),
                Tier::Disk => options.disk_cache = Some(DiskCache { dir, bytes: 1 << 30 }),
            }
        })
    }

    /// What is stored leaves the device: longer prompts of somebody else come, or another process begins.
    fn push_out(&mut self) {
        match self.tier {
            Tier::Device => {}
            Tier::Host => {
                let before = self.server.stats().prefixes.demotions;
                for i in 0..3 {
                    let prompt: Vec<u32> = (0..3900).map(|at| 300 + (at * (i + 3) + at * at) % 1500).collect();
                    let body = json!({"prompt": prompt, "max_tokens": 1, "cache_salt": format!("{i} {before}")});
                    post(self.server.addr, "/v1/completions", &body).ok();
                }
                assert!(self.server.stats().prefixes.demotions > before, "nothing left the device");
            }
            Tier::Disk => {
                self.server.shutdown.request();
                self.server.outcome().unwrap();
                self.server = Self::start((self.tier, &self.draft), self.dir.path().to_owned());
            }
        }
    }

    fn check(&self, turn: &Turn, which: usize) -> Value {
        let answer = post(self.server.addr, CHAT, &turn.body).ok();
        let what = (which, self.tier, &self.draft, cached(&answer));
        assert_eq!(whole_choices(&answer), turn.expected, "turn, tier, draft, stored: {what:?}");
        assert_eq!(answer["usage"]["prompt_tokens"].as_u64(), Some(turn.prompt_tokens), "{what:?}");
        answer
    }
}

fn chat(turns: &[Turn], tier: Tier, draft: Option<DraftChoice>) {
    let mut rig = Rig::new(tier, draft);
    let mut accepted = 0;
    for (which, turn) in turns.iter().enumerate() {
        let answer = rig.check(turn, which);
        // Instructions and tools at least; what a turn asks of its answer comes behind them and parts it from the one before.
        let known = if which == 0 { 0 } else { 300 };
        assert!(cached(&answer) >= known, "turn {which}, {tier:?}, {:?}: {} stored", rig.draft, cached(&answer));
        let details = &answer["usage"]["completion_tokens_details"];
        accepted += details["accepted_prediction_tokens"].as_u64().unwrap_or(0);
        if which % 4 == 3 {
            let streamed = assemble(&stream(rig.server.addr, CHAT, &turn.body), 1);
            assert_eq!(streamed.choices, turn.expected, "turn {which}, streamed, {tier:?}, {:?}", rig.draft);
            rig.push_out();
        }
    }
    assert!(rig.draft.is_none() || accepted > 20, "{accepted} drafts were kept: {tier:?}, {:?}", rig.draft);
    // Nothing that came later has spoilt what was stored first; n answers share one prompt.
    rig.check(&turns[0], 0);
    let twice = post(rig.server.addr, CHAT, &with(&turns[11].body, "n", 2)).ok();
    let expected = &turns[11].expected[0];
    assert!(whole_choices(&twice).iter().all(|choice| choice == expected), "n = 2, {tier:?}, {:?}", rig.draft);
    let stats = rig.server.stats().prefixes;
    match tier {
        Tier::Device => assert!(stats.restores > 10, "{stats:?}"),
        Tier::Host => assert!(stats.promoted_blocks > 5, "{stats:?}"),
        Tier::Disk => assert!(stats.disk_restores > 0 && stats.disk_losses == 0, "{stats:?}"),
    }
}

#[test]
fn twelve_turns_with_tools_and_forms_from_every_tier_with_every_draft() {
    let turns = turns();
    let dspark = || DraftChoice::Dspark(demo_dir().join("../demo-dspark"));
    for tier in [Tier::Device, Tier::Host, Tier::Disk] {
        for draft in [None, Some(DraftChoice::Ngram), Some(dspark())] {
            chat(&turns, tier, draft);
        }
    }
}
