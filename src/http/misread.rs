//! What is wrong with a body or a query, in the gateway's own words: which field, by which rule, and what was sent.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use serde_path_to_error::{Path, Segment};
use url::form_urlencoded;

/// Most characters of what was sent that are repeated.
const SENT_CHARS: usize = 40;
/// The field whose value is never repeated.
const SECRET: &str = "token";

/// Reads JSON.
///
/// # Errors
/// Text for whoever sent it.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.trim_ascii().is_empty() {
        return Err("it is empty".to_owned());
    }
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let path = error.path().clone();
        let error = error.into_inner();
        if error.classify() != Category::Data {
            return no_json(&error);
        }
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        let sent = || serde_json::from_slice::<Value>(bytes).ok().and_then(|sent| at(&sent, &path).map(shown));
        told(&path, message.strip_suffix(&place).unwrap_or(&message), sent)
    })?;
    parser.end().map_err(|error| no_json(&error))?;
    Ok(value)
}

/// Reads a query.
///
/// # Errors
/// Text for whoever sent it.
pub fn query<T: DeserializeOwned>(query: &str) -> Result<T, String> {
    let fields = || form_urlencoded::parse(query.as_bytes());
    serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(fields())).map_err(|error| {
        let name = error.path().to_string();
        let sent = || fields().find(|(field, _)| *field == *name).map(|(_, value)| quoted(&value));
        told(error.path(), &error.inner().to_string(), sent)
    })
}

fn no_json(error: &serde_json::Error) -> String {
    format!("it is no JSON (line {}, column {})", error.line(), error.column())
}

/// What the parser says of a field, in the words of these routes.
fn told(path: &Path, message: &str, sent: impl FnOnce() -> Option<String>) -> String {
    let place = path.to_string();
    let key = path.iter().next_back().map_or_else(String::new, |segment| cut(&segment.to_string()));
    // Names stand in backticks, and those of fields and variants are the gateway's own.
    let names = |text: &str| text.split('`').skip(1).step_by(2).collect::<Vec<_>>().join(", ");
    let known = message.rsplit_once(", expected ").map_or("", |(_, expected)| expected);
    let rule = if message.starts_with("unknown field ") {
        return format!("there is no field `{key}` (there are: {})", names(known));
    } else if message.starts_with("missing field ") {
        return format!("{} is missing", names(message));
    } else if message.starts_with("duplicate field ") {
        return format!("{} is there twice", names(message));
    } else if message.starts_with("unknown variant ") {
        format!("it is one of {}", names(known))
    } else if message.starts_with("invalid ") && !known.is_empty() {
        format!("it takes {}", taken(known))
    } else {
        message.to_owned()
    };
    let field = if place == "." { String::new() } else { format!("{}: ", cut(&place)) };
    let sent = sent().filter(|_| key != SECRET).map(|sent| format!(" (sent: {sent})")).unwrap_or_default();
    format!("{field}{rule}{sent}")
}

/// What a field takes, where the parser names a type of its own.
fn taken(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "a boolean" => "true or false",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

fn at<'a>(value: &'a Value, path: &Path) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Map { key } => value.get(key),
        Segment::Seq { index } => value.get(index),
        Segment::Enum { .. } | Segment::Unknown => None,
    })
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => quoted(text),
        other => cut(&other.to_string()),
    }
}

fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}

/// The beginning of a text that is long.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SENT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::config::Span;
    use crate::http::json::PageOf;
    use crate::protocol::{ChatId, Principal};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Body {
        principal: Principal,
        chats: Option<Vec<ChatId>>,
        ttl: Option<Span>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Secret {
        token: u32,
    }

    #[test]
    fn a_body_is_told_by_field_rule_and_what_was_sent() {
        const RULE: &str = "is user:<id>, agent:<id> or *, printable, at most 512 bytes";
        const DURATION: &str = "a duration is a number with its unit, such as 90s, 2m or 1h";
        for (body, reason) in [
            (r#"{"principal":"user:a","ttl":300}"#, "ttl: it takes a duration in quotes, such as \"5m\" (sent: 300)"),
            (r#"{"principal":"user:a","ttl":"5 eons"}"#, &format!("ttl: {DURATION} (sent: \"5 eons\")")),
            (r#"{"principal":"alice"}"#, &format!("principal: a principal {RULE} (sent: \"alice\")")),
            (r#"{"principal":"user:a","chats":["a",[2]]}"#, "chats[1]: it takes a string (sent: a list)"),
            (r#"{"principal":"user:a","chats":"a"}"#, "chats: it takes a list (sent: \"a\")"),
            (r#"{"principal":"user:a","chat":"a"}"#, "there is no field `chat` (there are: principal, chats, ttl)"),
            (r#"{"ttl":"5m"}"#, "principal is missing"),
            (r#"{"principal":"user:a","principal":"user:a"}"#, "principal is there twice"),
            ("7", "it takes an object (sent: 7)"),
            ("{oops", "it is no JSON (line 1, column 2)"),
            ("{}}", "principal is missing"),
            (r#"{"principal":"user:a"}}"#, "it is no JSON (line 1, column 23)"),
            ("{\n\"principal\":", "it is no JSON (line 2, column 12)"),
            ("", "it is empty"),
            (" \n", "it is empty"),
        ] {
            assert_eq!(json::<Body>(body.as_bytes()).unwrap_err(), reason, "{body}");
        }
    }

    #[test]
    fn a_query_is_told_by_field_rule_and_what_was_sent() {
        const ROWS: &str = "a page has a whole number of rows, 1 or more";
        for (text, reason) in [
            ("limit=0", &*format!("limit: {ROWS} (sent: \"0\")")),
            ("cursor=a&limit=%22x", &format!("limit: {ROWS} (sent: \"\\\"x\")")),
            ("limit=", &format!("limit: {ROWS} (sent: \"\")")),
            ("limt=1", "there is no field `limt` (there are: cursor, limit)"),
            ("limit=1&limit=2", "limit is there twice"),
        ] {
            assert_eq!(query::<PageOf<ChatId>>(text).unwrap_err(), reason, "{text}");
        }
        assert_eq!(query::<Secret>("token=hunter2").unwrap_err().find("hunter2"), None);
    }

    #[test]
    fn what_is_long_is_cut() {
        let long = "ä".repeat(1000);
        for told in [
            json::<Body>(format!(r#"{{"principal":"{long}"}}"#).as_bytes()).unwrap_err(),
            json::<Body>(format!(r#"{{"{long}":1}}"#).as_bytes()).unwrap_err(),
            query::<PageOf<ChatId>>(&format!("limit={long}")).unwrap_err(),
            query::<PageOf<ChatId>>(&format!("{long}=1")).unwrap_err(),
        ] {
            assert!(told.chars().count() < 200 && told.contains("ä…"), "{told}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_read_or_told(text in "\\PC{0,40}", field in "(principal|chats|ttl|x)") {
            let _ = json::<Body>(text.as_bytes());
            let _ = query::<PageOf<ChatId>>(&text);
            let body = serde_json::json!({ field: text }).to_string();
            let _ = json::<Body>(body.as_bytes());
        }
    }
}
