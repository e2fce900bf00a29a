//! A real browser signs in and out: with Debian's Chromium, through its WebDriver (W3C).
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use process::{Gateway, PATIENCE, Process, READER, request, tool};
use serde_json::{Value, json};

/// An element's name in WebDriver's JSON (section 12).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser without a window, that reaches nothing but this machine.
struct Browser {
    driver: SocketAddr,
    session: String,
    _process: Process,
    _dir: tempfile::TempDir,
}

impl Browser {
    fn start(driver: &Path, chromium: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Whoever takes the port in between makes this fail, and nothing pass.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = std::process::Command::new(driver);
        command.arg(format!("--port={}", address.port())).env("HOME", dir.path()).stdin(std::process::Stdio::null());
        let process = Process::spawn(command);
        until("the driver", || TcpStream::connect(address).ok());
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            &format!("--user-data-dir={}", dir.path().join("profile").display()),
        ];
        let options = json!({"binary": chromium, "args": arguments});
        let wanted = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}});
        let mut browser = Self { driver: address, session: String::new(), _process: process, _dir: dir };
        let made = browser.tell("POST", "/session", &wanted);
        made["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        browser
    }

    fn tell(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = request(self.driver, method, path, "", body);
        let mut answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer["value"].take()
    }

    fn ask(&self, method: &str, command: &str, body: &Value) -> Value {
        self.tell(method, &format!("/session/{}/{command}", self.session), body)
    }

    fn open(&self, url: &str) {
        self.ask("POST", "url", &json!({ "url": url }));
    }

    fn url(&self) -> String {
        self.ask("GET", "url", &json!({})).as_str().unwrap().to_owned()
    }

    fn find(&self, selector: &str) -> String {
        let found = self.ask("POST", "element", &json!({"using": "css selector", "value": selector}));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// What a script of the driver's sees: the page's own policy does not hold for it.
    fn run(&self, script: &str) -> String {
        self.ask("POST", "execute/sync", &json!({"script": script, "args": []})).as_str().unwrap().to_owned()
    }

    /// Presses the page's one button, and waits until the page that follows says this.
    fn press(&self, then: &str) {
        let button = self.find("button");
        self.ask("POST", &format!("element/{button}/click"), &json!({}));
        self.says(then);
    }

    fn says(&self, text: &str) {
        let script = "return document.body ? document.body.innerText : ''";
        until(text, || self.run(script).contains(text).then_some(()));
    }

    fn cookies(&self) -> Vec<Value> {
        self.ask("GET", "cookie", &json!({})).as_array().unwrap().clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser is the driver's child, and would outlive it.
        if !self.session.is_empty() && !thread::panicking() {
            self.tell("DELETE", &format!("/session/{}", self.session), &json!({}));
        } else if !self.session.is_empty() {
            let session = format!("/session/{}", self.session);
            let driver = self.driver;
            let _ = thread::spawn(move || request(driver, "DELETE", &session, "", &json!({}))).join();
        }
    }
}

/// Asks again until it is so: what a browser does after a click cannot be waited for otherwise.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "no {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_browser_signs_in_with_a_code_or_a_token_and_out_again() {
    let (Some(driver), Some(chromium)) = (tool("chromedriver"), tool("chromium")) else { return };
    let gateway = Gateway::start();
    gateway.open_chat();
    let origin = format!("http://{}", gateway.address);
    let sets = format!("{origin}/v1/chats/c1/sets");
    let browser = Browser::start(&driver, &chromium);

    // A stranger reads nothing, and is shown where to sign in.
    let first = format!("{origin}/signin?next=%2Fv1%2Fchats%2Fc1%2Fsets");
    browser.open(&sets);
    browser.says("Token");
    assert_eq!(browser.url(), first);

    // With a code: only the button uses it up.
    let body = json!({"principal": READER, "next": "/v1/chats/c1/sets"});
    let (status, code) = request(gateway.address, "POST", "/v1/signin-codes", &gateway.token(&["operator"]), &body);
    assert_eq!(status, 201, "{code}");
    let code: Value = serde_json::from_str(&code).unwrap();
    let link = code["url"].as_str().unwrap();
    browser.open(link);
    browser.open(link);
    browser.press("next_cursor");
    assert_eq!(browser.url(), sets, "the code is not in the address any more");
    let cookies = browser.cookies();
    assert_eq!(cookies.len(), 1, "{cookies:?}");
    assert_eq!((&cookies[0]["httpOnly"], &cookies[0]["sameSite"]), (&json!(true), &json!("Lax")));
    assert_eq!(browser.run("return document.cookie"), "", "no script sees it");

    browser.open(&format!("{origin}/signin"));
    browser.says(READER);
    browser.press("Token");
    assert!(browser.cookies().is_empty());
    browser.open(&sets);
    browser.says("Token");
    assert_eq!(browser.url(), first);

    // The code was good once.
    browser.open(link);
    browser.press("has been used");

    // With a token, typed into the form; the style is the page's own, and its policy allows it.
    browser.open(&sets);
    let field = browser.find("#token");
    let width = browser.ask("GET", &format!("element/{field}/css/box-sizing"), &json!({}));
    assert_eq!(width, "border-box");
    browser.ask("POST", &format!("element/{field}/value"), &json!({"text": gateway.reader_token()}));
    browser.press("next_cursor");
    assert_eq!(browser.url(), sets);
}
