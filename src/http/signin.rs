//! Browsers: signing in with a token or a single-use code, and out again.
//!
//! A browser that has signed in holds a random cookie, of which the gateway keeps a keyed hash with the principal, the
//! token's limit to chats, and an end that is never later than the token's. A row, and not a signed cookie, because
//! signing out has to end it wherever a copy of the cookie is by then.

use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http::header::{CACHE_CONTROL, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::AppState;
use super::auth::{self, Operator, cookie};
use super::error::Problem;
use super::json::{JsonBody, read_body};
use super::next::{SIGN_IN, is_local};
use super::page::{Escaped, page};
use super::routes::Routes;
use crate::config::Span;
use crate::identity::{OpaqueSecret, Purpose};
use crate::protocol::timestamp;
use crate::protocol::{ChatId, Principal};
use crate::store::BrowserRecord;

/// Largest form, in bytes: a token and where to go.
const FORM_BYTES: usize = 16 * 1024;
/// How long a code is good for when nobody says, and at most.
const CODE_TTL: Duration = Duration::from_secs(10 * 60);
const CODE_TTL_MAX: Duration = Duration::from_secs(60 * 60);

/// The routes.
pub fn routes() -> Routes {
    Routes::new()
        .route(SIGN_IN, get(form).post(sign_in))
        .route("/signout", post(sign_out))
        .route("/v1/signin-codes", post(make_code))
}

/// What a path without a route answers. A person who opens the gateway's bare address is sent to the one page there is.
pub async fn not_found(parts: Parts) -> Problem {
    match parts.uri.path() == "/" && cookie::is_visited(&parts) {
        true => Problem::SignIn(SIGN_IN.to_owned()),
        false => Problem::NotFound,
    }
}

/// Fields of a form, or of the query that fills it in. What is not known is left alone.
#[derive(Default)]
struct Fields {
    token: Option<String>,
    code: Option<String>,
    next: Option<String>,
}

impl Fields {
    fn read(text: &[u8]) -> Self {
        let mut fields = Self::default();
        for (name, value) in form_urlencoded::parse(text) {
            let field = match &*name {
                "token" => &mut fields.token,
                "code" => &mut fields.code,
                "next" => &mut fields.next,
                _ => continue,
            };
            field.get_or_insert_with(|| value.into_owned());
        }
        fields
    }

    fn next(&self) -> &str {
        self.next.as_deref().filter(|next| is_local(next)).unwrap_or(SIGN_IN)
    }
}

/// The form. A code in the address is not used up here: whoever previews links follows them too.
async fn form(State(state): State<AppState>, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let fields = Fields::read(uri.query().unwrap_or_default().as_bytes());
    let next = Escaped(fields.next());
    if let Some(code) = fields.code.as_deref().and_then(|code| state.handed_out.read(Purpose::SignInCode, code)) {
        let code = code.expose();
        let body = format!(
            "<form method=\"post\" action=\"{SIGN_IN}\"><input type=\"hidden\" name=\"code\" value=\"{code}\">\
             <input type=\"hidden\" name=\"next\" value=\"{next}\">\n\
             <p>This link signs this browser in, once.</p><button autofocus>Sign in</button></form>\n"
        );
        return Ok(page(StatusCode::OK, "Sign in", &body));
    }
    let cookie = cookie::cookie(&headers, &state.public_url).flatten();
    if let Some(caller) = cookie::browser(cookie.as_deref(), &state).await? {
        let body = format!(
            "<p>You are signed in as <strong>{}</strong>.</p>\n\
             <p>Links to files in your chats open in this browser until you sign out, or have to sign in again.</p>\n\
             <form method=\"post\" action=\"/signout\"><button>Sign out</button></form>\n",
            Escaped(caller.principal.as_str())
        );
        return Ok(page(StatusCode::OK, "Signed in", &body));
    }
    Ok(page(StatusCode::OK, "Sign in", &token_form(&next)))
}

fn token_form(next: &Escaped<'_>) -> String {
    format!(
        "<form method=\"post\" action=\"{SIGN_IN}\"><input type=\"hidden\" name=\"next\" value=\"{next}\">\n\
         <label for=\"token\">Token</label>\
         <input id=\"token\" name=\"token\" type=\"password\" autocomplete=\"off\" spellcheck=\"false\" required autofocus>\n\
         <button>Sign in</button></form>\n"
    )
}

/// Why somebody is not signed in, for people.
enum Refusal {
    Token(String),
    Operator,
    Code,
    Nothing,
    Other(Problem),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Other(problem)
    }
}

async fn sign_in(State(state): State<AppState>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut fields = Fields::default();
    let outcome = async {
        cookie::same_origin(&parts.headers, &state.public_url)?;
        fields = Fields::read(&read_body(&parts.headers, "application/x-www-form-urlencoded", body, FORM_BYTES).await?);
        let secret = state.handed_out.issue(Purpose::Browser);
        let expires_at = admit(&state, &fields, &secret).await?;
        Ok::<_, Refusal>((secret, expires_at))
    };
    let refusal = match outcome.await {
        Ok((secret, expires_at)) => return signed_in(&state, &secret, expires_at, fields.next()),
        Err(refusal) => refusal,
    };
    let guess = matches!(refusal, Refusal::Token(_) | Refusal::Code);
    let refusal = match guess.then(|| state.limiter.failed(&parts.extensions)) {
        Some(Err(limited)) => Refusal::Other(limited),
        _ => refusal,
    };
    refused(&state, &refusal, fields.next())
}

/// Signs a browser in that holds `secret` from now on; until when.
async fn admit(state: &AppState, fields: &Fields, secret: &OpaqueSecret) -> Result<i64, Refusal> {
    let now = state.clock.unix_millis();
    let latest = now.saturating_add(timestamp::millis(state.signin_ttl));
    if let Some(code) = &fields.code {
        let code = state.handed_out.read(Purpose::SignInCode, code).ok_or(Refusal::Code)?;
        let redeemed = state.handed_out.redeem(&code, secret, latest).await.map_err(Problem::from)?;
        return redeemed.map(|browser| browser.expires_at).ok_or(Refusal::Code);
    }
    let token = fields.token.as_deref().map(str::trim).filter(|token| !token.is_empty()).ok_or(Refusal::Nothing)?;
    let (identity, token_ends) = auth::token_until(token, state).await.map_err(|problem| match problem {
        Problem::BadCredential(error) => Refusal::Token(error.to_string()),
        problem => Refusal::Other(problem),
    })?;
    let caller = identity.caller().ok_or(Refusal::Operator)?;
    let expires_at = latest.min(token_ends);
    let chats = caller.chats.map(|chats| chats.to_vec());
    let browser = BrowserRecord { principal: caller.principal, chats, expires_at };
    state.store.add_browser(&state.handed_out.hash(Purpose::Browser, secret), &browser).await.map_err(Problem::from)?;
    Ok(expires_at)
}

fn signed_in(state: &AppState, secret: &OpaqueSecret, expires_at: i64, next: &str) -> Response {
    let seconds = (expires_at - state.clock.unix_millis()).max(0) / 1000;
    go_on(next, &set_cookie(state, secret.expose(), seconds))
}

fn set_cookie(state: &AppState, value: &str, seconds: i64) -> String {
    let name = cookie::name(&state.public_url);
    let secure = if state.public_url.is_https() { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}")
}

/// To a path of this gateway, by GET, with the cookie.
fn go_on(next: &str, cookie: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in [(LOCATION, next), (SET_COOKIE, cookie)] {
        // Both are printable ASCII: a local path is, and the cookie is made of such.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    response
}

fn refused(state: &AppState, refusal: &Refusal, next: &str) -> Response {
    let problem = match refusal {
        Refusal::Other(problem) => problem.clone(),
        Refusal::Operator => Problem::Forbidden,
        Refusal::Token(_) | Refusal::Code | Refusal::Nothing => Problem::SignedOut,
    };
    let why = match refusal {
        Refusal::Token(why) => format!("{why}."),
        Refusal::Operator => "An operator's token opens no chat. Sign in with a reader's.".to_owned(),
        Refusal::Code => "This link has been used, or is too old. Ask for a new one.".to_owned(),
        Refusal::Nothing => "A token is needed.".to_owned(),
        Refusal::Other(Problem::ForeignOrigin) => {
            format!("This form came from another address. Open {}{SIGN_IN} and try again.", state.public_url)
        }
        Refusal::Other(problem) => format!("{problem}."),
    };
    let body = format!("<p role=\"alert\">{}</p>\n{}", Escaped(&why), token_form(&Escaped(next)));
    let mut response = page(problem.status(), "Not signed in", &body);
    // Of the page's own headers and the problem's the page's are the stricter.
    for (name, value) in problem.headers() {
        if let Some(name) = name {
            response.headers_mut().entry(name).or_insert(value);
        }
    }
    response
}

async fn sign_out(
    State(state): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    cookie::same_origin(&headers, &state.public_url)?;
    let cookie = cookie::cookie(&headers, &state.public_url).flatten();
    // Asked before anything is written: whoever guesses at cookies keeps no writer busy.
    let secret = cookie.as_deref().and_then(|cookie| state.handed_out.read(Purpose::Browser, cookie));
    match secret {
        Some(secret) if state.handed_out.browser(&secret).await?.is_some() => {
            state.store.remove_browser(&state.handed_out.hash(Purpose::Browser, &secret)).await?;
        }
        // Counted, and signed out all the same.
        _ if cookie.is_some() => drop(state.limiter.failed(&extensions)),
        _ => {}
    }
    Ok(go_on(SIGN_IN, &set_cookie(&state, "", 0)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CodeBody {
    principal: Principal,
    #[serde(default)]
    chats: Option<Vec<ChatId>>,
    #[serde(default)]
    ttl: Option<Span>,
    #[serde(default)]
    next: Option<String>,
}

#[derive(Serialize)]
struct CodeView {
    url: String,
    expires_at: String,
}

async fn make_code(
    _: Operator,
    State(state): State<AppState>,
    JsonBody(body): JsonBody<CodeBody>,
) -> Result<Response, Problem> {
    if body.principal == Principal::everyone() {
        return Err(Problem::BadRequest("a code signs in one principal, and * is nobody".into()));
    }
    let ttl = body.ttl.map_or(CODE_TTL, Span::get);
    if ttl.is_zero() || ttl > CODE_TTL_MAX {
        return Err(Problem::BadRequest("a code is good for more than no time and at most 1h".into()));
    }
    let next = body.next.filter(|next| next != SIGN_IN);
    if next.as_deref().is_some_and(|next| !is_local(next)) {
        return Err(Problem::BadRequest("next is a path of this gateway, such as /chats/review".into()));
    }
    let expires_at = state.clock.unix_millis().saturating_add(timestamp::millis(ttl));
    let code = state.handed_out.issue(Purpose::SignInCode);
    let record = BrowserRecord { principal: body.principal, chats: body.chats, expires_at };
    state.store.add_signin_code(&state.handed_out.hash(Purpose::SignInCode, &code), &record).await?;
    let mut url = format!("{}{SIGN_IN}?code={}", state.public_url, code.expose());
    if let Some(next) = next {
        url.push_str(&format!("&next={}", utf8_percent_encode(&next, NON_ALPHANUMERIC)));
    }
    let no_store = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((StatusCode::CREATED, no_store, Json(CodeView { url, expires_at: timestamp::format_nearest(expires_at) }))
        .into_response())
}
