//! `duewheel token`: makes tokens and their hashes for the server, lists and revokes them.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use duewheel::core::WallMs;
use duewheel_api::rfc3339;
use duewheel_api::token::Token;
use duewheel_cli::system_words::of_file;
use duewheel_cli::when::{self, GivenTime};
use duewheel_cli::{
    ClientArgs, CommandFailure, ListTokensArgs, RunCommand, commands, note, print_answer, print_json,
    queue_name,
};
use duewheel_server::auth::{Hash, Scope, TokenEntry, TokenTable, block, generate};
use duewheel_server::private;
use jiff::Zoned;
use serde_json::json;
use toml_edit::{DocumentMut, Item, TomlError};

const OWNER_ONLY: u32 = 0o600;
const EXPIRES: &str = "must be a length of time such as 90d or \"1 year\", or an instant such as 2027-01-01";

commands! {
    pub(crate) enum TokenCommand {
        /// Make a token: prints it, once, and the block for the server's file of tokens
        New(NewTokenArgs),
        /// Read a token from standard input and print the hash that the server keeps
        Hash(HashTokenArgs),
        /// List the tokens of a server, without hashes; needs a token with the scope `admin` for all queues
        List(ClientArgs<ListTokensArgs>),
        /// Remove a token from the server's file
        Revoke(RevokeTokenArgs),
    }
}

#[derive(Args, Debug)]
pub(crate) struct NewTokenArgs {
    /// A name of the token's holder, for people
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The scopes that it allows; may be given several times, or separated by commas
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_delimiter = ',')]
    scopes: Vec<Scope>,
    /// Only for queues whose names begin with this prefix; may be given several times [default: all queues]
    #[arg(long = "queue", value_name = "PREFIX")]
    queues: Vec<String>,
    /// How long it is valid, such as 90d or "1 year", or until when, such as 2027-01-01 [default: without end]
    #[arg(long, value_name = "TIME|INSTANT")]
    expires: Option<String>,
    /// The server's file of tokens: the new one is appended, and only the token is printed
    #[arg(long, env = "DUEWHEEL_TOKENS", value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Print JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct HashTokenArgs {
    /// Print JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RevokeTokenArgs {
    /// The name of the token's holder
    name: String,
    /// The server's file of tokens
    #[arg(long, env = "DUEWHEEL_TOKENS", value_name = "FILE")]
    tokens: PathBuf,
    /// Print JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
}

impl RunCommand for RevokeTokenArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let file = &self.tokens;
        let failed =
            |why: &dyn std::fmt::Display| CommandFailure::Failed(format!("{}: {why}", file.display()));
        let of_file = |why| CommandFailure::Failed(of_file(file, &why));
        let _lock = locked(file, || File::open(file)).map_err(of_file)?;
        let text = fs::read_to_string(file).map_err(of_file)?;
        TokenTable::parse(&text).map_err(|what| failed(&what))?;
        let mut document: DocumentMut = text.parse().map_err(|error: TomlError| failed(&error.message()))?;
        let tokens = document.get_mut("token").and_then(Item::as_array_of_tables_mut);
        let before = tokens.as_ref().map_or(0, |tokens| tokens.len());
        if let Some(tokens) = tokens {
            tokens.retain(|token| token.get("name").and_then(Item::as_str) != Some(&self.name));
            if tokens.len() < before {
                replace(file, &document.to_string()).map_err(|error| failed(&error))?;
                note(format!(
                    "revoked; it counts until the server next looks at {}; kill -HUP makes it look at once",
                    file.display()
                ));
                if self.json {
                    print_json(&mut io::stdout(), &json!({"revoked": self.name}))?;
                }
                return Ok(());
            }
        }
        Err(CommandFailure::NotFound(format!("{}: there is no token of {:?}", file.display(), self.name)))
    }
}

/// Opens the file and locks it, so that commands change it one after the other. The lock ends with the opened file.
fn locked(file: &Path, open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    loop {
        let opened = open()?;
        opened.lock()?;
        let (opened_as, stands) = (opened.metadata()?, fs::metadata(file)?);
        // Another command may have replaced it since.
        if (opened_as.dev(), opened_as.ino()) == (stands.dev(), stands.ino()) {
            return Ok(opened);
        }
    }
}

/// Replaces a file by another with the same rights: a server that reads it at any time finds the one or the other. Its
/// caller has locked it.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // Through a link: what it leads to is replaced.
    let file = fs::canonicalize(file)?;
    let folder = file.parent().ok_or(io::ErrorKind::NotFound)?;
    let old = fs::metadata(&file)?;
    let mut next = file.clone().into_os_string();
    next.push(".new");
    let next = PathBuf::from(next);
    let result = (|| {
        // A command that was killed may have left one.
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut new = OpenOptions::new().write(true).create_new(true).mode(old.mode() & 0o777).open(&next)?;
        std::os::unix::fs::fchown(&new, Some(old.uid()), Some(old.gid()))?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&next, &file)
    })();
    if let Err(error) = result {
        let _ = fs::remove_file(&next);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

impl RunCommand for NewTokenArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let token = generate().map_err(CommandFailure::Failed)?;
        let queue = |text: &String| {
            queue_name(text).map_err(|what| CommandFailure::Usage(format!("--queue {text:?}: {what}")))
        };
        let queues = self.queues.iter().map(queue).collect::<Result<Vec<_>, _>>()?;
        let entry = TokenEntry {
            name: self.name,
            hash: Hash::of(token.reveal().as_bytes()),
            scopes: self.scopes.into_iter().collect::<BTreeSet<_>>(),
            queues: (!queues.is_empty()).then_some(queues),
            expires: self.expires.as_deref().map(end).transpose()?,
        };
        let block = block(&entry).to_string();
        // The file must be valid with the new block, including the name.
        TokenTable::parse(&block)
            .map_err(|what| CommandFailure::Usage(what.replacen("token ", "--name ", 1)))?;
        let mut out = io::stdout().lock();
        let mut made = json!({"token": token.reveal(), "name": entry.name, "hash": entry.hash.to_string()});
        match &self.tokens {
            Some(file) => {
                append(file, &block)?;
                if !self.json {
                    writeln!(out, "{}", token.reveal())?;
                }
                made["tokens"] = file.display().to_string().into();
                note(format!(
                    "written to {}; it counts from now on, or when the server next looks at the file; kill -HUP makes it look at once",
                    file.display()
                ));
            }
            None if self.json => made["block"] = block.into(),
            None => {
                writeln!(out, "{}\n\n{block}", token.reveal())?;
                note(
                    "the first line is the token, which is nowhere else; the rest belongs into the server's --tokens file"
                        .to_owned(),
                );
            }
        }
        if self.json {
            print_json(&mut out, &made)?;
        }
        Ok(())
    }
}

/// When a token ends that is valid for this time, or until this instant.
fn end(text: &str) -> Result<WallMs, CommandFailure> {
    let now = Zoned::now();
    let usage = |what: &str| CommandFailure::Usage(format!("--expires {text:?}: {what}"));
    // Of a text that is neither, what is wrong with it as an instant says more, unless it looks like none.
    let read = when::delay(text, &now).or_else(|_| when::at(text, &now));
    let read =
        read.map_err(|what| if what.starts_with("must be an instant") { EXPIRES.to_owned() } else { what });
    let end = match when::time_of("--expires", text, read)? {
        GivenTime::After(ms) => {
            u64::try_from(now.timestamp().as_millisecond()).unwrap_or(0).saturating_add(ms)
        }
        GivenTime::At(instant) => rfc3339::parse(&instant).map_err(|what| usage(&what.to_string()))?.0,
    };
    // RFC 3339 ends with the year 9999.
    if end > 253_402_300_799_999 {
        return Err(usage("is too long; leave it out for a token without end"));
    }
    if end <= u64::try_from(now.timestamp().as_millisecond()).unwrap_or(0) {
        return Err(usage("has passed"));
    }
    Ok(WallMs(end))
}

/// Appends to the file, so that it keeps its owner, and a server that reads it at any time finds all other tokens.
fn append(file: &Path, block: &str) -> Result<(), CommandFailure> {
    let failed = |why: io::Error| CommandFailure::Failed(of_file(file, &why));
    let open = |options: &mut OpenOptions| options.read(true).append(true).open(file);
    let open_or_make = || match open(&mut OpenOptions::new()) {
        // A new file is created under its own name, never through a dangling link.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            open(OpenOptions::new().create_new(true).mode(OWNER_ONLY))
        }
        opened => opened,
    };
    let mut opened = locked(file, open_or_make).map_err(failed)?;
    let exposed = |what| CommandFailure::Failed(format!("the tokens in {}: the file {what}", file.display()));
    private::check_for_owner(&opened.metadata().map_err(failed)?).map_err(exposed)?;
    let mut text = String::new();
    opened.read_to_string(&mut text).map_err(failed)?;
    let gap = match text.as_bytes() {
        [] => "",
        [.., b'\n'] => "\n",
        [..] => "\n\n",
    };
    let more = format!("{gap}{block}");
    text.push_str(&more);
    TokenTable::parse(&text).map_err(|what| CommandFailure::Failed(format!("{}: {what}", file.display())))?;
    opened.write_all(more.as_bytes()).map_err(failed)?;
    opened.sync_all().map_err(failed)
}

impl RunCommand for HashTokenArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let mut text = String::new();
        io::stdin().take(1_024).read_to_string(&mut text)?;
        let token: Token = text.trim().parse().map_err(CommandFailure::Usage)?;
        let hash = Hash::of(token.reveal().as_bytes()).to_string();
        print_answer(self.json, &json!({"hash": hash}), |out| writeln!(out, "{hash}"))
    }
}
