//! The document as one page without scripts, links to other places, or anything to fetch.

use std::fmt::Write;

use serde_json::{Map, Value};

const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,pre{font:13px/1.5 ui-monospace,monospace}
pre{padding:.6rem;overflow:auto;background:#8882;border-radius:6px}
details{border:1px solid #8885;border-radius:6px;margin:.4rem 0;padding:.3rem .8rem}
summary{cursor:pointer}
summary b{display:inline-block;min-width:3.2rem;font:700 12px ui-monospace,monospace}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #8883}
:target{outline:2px solid #58f}
";

/// The page of a document.
pub(super) fn render(document: &Value) -> String {
    let info = &document["info"];
    let mut page = Page::default();
    page.raw("<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>");
    page.raw(&format!("<title>Perilune: API</title><style>{STYLE}</style><h1>"));
    page.text(info["title"].as_str().unwrap_or_default());
    page.raw(" <small>");
    page.text(info["version"].as_str().unwrap_or_default());
    page.raw("</small></h1><p>");
    page.text(info["description"].as_str().unwrap_or_default());
    page.raw(" <a href='openapi.json'>openapi.json</a></p>");
    let mut tag = "";
    for (path, method, operation) in by_tag(document) {
        let group = operation["tags"][0].as_str().unwrap_or_default();
        if group != tag {
            tag = group;
            page.element("h2", tag);
        }
        page.operation((path, method), operation);
    }
    page.raw("<h2>Schemas</h2>");
    for (name, schema) in entries(&document["components"]["schemas"]) {
        page.schema(name, schema);
    }
    page.0
}

fn by_tag(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = entries(&document["paths"]);
    let mut all: Vec<(&str, &str, &Value)> = paths
        .flat_map(|(path, methods)| {
            entries(methods).map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
        })
        .collect();
    // Stable: within a group in the order of the routes.
    all.sort_by_key(|(_, _, operation)| operation["tags"][0].as_str().map(str::to_owned));
    all
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    fn text(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '&' => self.0.push_str("&amp;"),
                '\'' => self.0.push_str("&#39;"),
                '"' => self.0.push_str("&quot;"),
                c => self.0.push(c),
            }
        }
    }

    fn element(&mut self, name: &str, text: &str) {
        self.raw(&format!("<{name}>"));
        self.text(text);
        self.raw(&format!("</{name}>"));
    }

    fn operation(&mut self, (path, method): (&str, &str), operation: &Value) {
        self.raw("<details><summary>");
        self.element("b", &method.to_uppercase());
        self.element("code", path);
        self.raw(" ");
        self.text(operation["summary"].as_str().unwrap_or_default());
        self.raw("</summary>");
        self.element("p", operation["description"].as_str().unwrap_or_default());
        let body = &operation["requestBody"]["content"]["application/json"];
        if !body.is_null() {
            self.raw("<p>Body: ");
            self.kind(&body["schema"]);
            self.raw(", for example</p>");
            let example = serde_json::to_string_pretty(&body["example"]).unwrap_or_default();
            self.element("pre", &example);
        }
        self.raw("<table>");
        for (status, response) in entries(&operation["responses"]) {
            self.raw("<tr><td>");
            self.element("code", status);
            self.raw("</td><td>");
            for (media, content) in entries(&response["content"]) {
                self.element("code", media);
                self.raw(" ");
                let schema = &content["schema"];
                self.kind(schema.pointer("/properties/data/anyOf/0/contentSchema").unwrap_or(schema));
                self.raw("<br>");
            }
            self.element("td", response["description"].as_str().unwrap_or_default());
            self.raw("</tr>");
        }
        self.raw("</table></details>");
    }

    fn schema(&mut self, name: &str, schema: &Value) {
        self.raw("<details id='");
        self.text(name);
        self.raw("'><summary>");
        self.element("code", name);
        self.raw(" ");
        self.text(schema["description"].as_str().unwrap_or_default());
        self.raw("</summary>");
        match schema.get("properties") {
            Some(_) => self.properties(schema),
            None => {
                self.raw("<p>");
                self.kind(schema);
                self.raw("</p>");
            }
        }
        let variants = schema["oneOf"].as_array().into_iter().flatten();
        variants.filter(|variant| variant.get("properties").is_some()).for_each(|variant| {
            self.element("p", variant["description"].as_str().unwrap_or_default());
            self.properties(variant);
        });
        self.raw("</details>");
    }

    fn properties(&mut self, schema: &Value) {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        self.raw("<table>");
        for (name, property) in entries(&schema["properties"]) {
            self.raw("<tr><td>");
            self.element("code", name);
            self.raw(if required.contains(&name.as_str()) { " *</td><td>" } else { "</td><td>" });
            self.kind(property);
            self.element("td", property["description"].as_str().unwrap_or_default());
            self.raw("</tr>");
        }
        self.raw("</table>");
    }

    /// A schema in a few words.
    fn kind(&mut self, schema: &Value) {
        if let Some(name) = schema["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
            self.raw("<a href='#");
            self.text(name);
            self.raw("'>");
            self.text(name);
            return self.raw("</a>");
        }
        if let Some(value) = schema.get("const") {
            return self.element("code", &value.to_string());
        }
        for several in ["anyOf", "oneOf"] {
            if let Some(kinds) = schema[several].as_array() {
                for (i, kind) in kinds.iter().enumerate() {
                    self.raw(if i > 0 { " or " } else { "" });
                    self.kind(kind);
                }
                return;
            }
        }
        self.plain(schema);
    }

    fn plain(&mut self, schema: &Value) {
        let words = match &schema["type"] {
            Value::String(kind) => kind.clone(),
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
            _ => "anything".to_owned(),
        };
        self.text(&words);
        if schema.get("items").is_some() {
            self.raw(" of ");
            self.kind(&schema["items"]);
        } else if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
            self.raw(" to ");
            self.kind(values);
        }
        let mut bounds = String::new();
        for (key, sign) in [("minimum", "≥"), ("maximum", "≤"), ("minLength", "length ≥"), ("maxLength", "length ≤")]
        {
            if let Some(bound) = schema.get(key) {
                // Writing to a string cannot fail.
                let _ = write!(bounds, ", {sign} {bound}");
            }
        }
        self.text(&bounds);
    }
}
