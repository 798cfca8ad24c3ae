//! The stream as it should be: made where there is none, adjusted where there is one, and never harmed.
//!
//! What [`plan`] decides is decided without a broker. It never deletes a stream, never makes one again, never lowers its replicas, and leaves
//! alone what is not its business.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};

use crate::broker::{Broker, BrokerError};
use crate::subject::ALL;

/// The name of the stream unless somebody says so.
pub const DEFAULT_NAME: &str = "EVENTS";

/// The least time for which a stream keeps messages: a consumer that was down for a day finds what it missed.
pub const MAX_AGE_FLOOR: Duration = Duration::from_secs(24 * 60 * 60);

/// What a stream is to be like.
///
/// ```
/// use seqline_nats::stream::StreamSettings;
///
/// let mut settings = StreamSettings::default();
/// settings.replicas = 3;
/// settings.check()?;
/// # Ok::<(), seqline_nats::stream::StreamError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSettings {
    /// Its name. `EVENTS`.
    pub name: String,
    /// How long it keeps a message, at least 24 hours. 7 days: an outage over a weekend, and time to mend it.
    pub max_age: Duration,
    /// How many bytes it may hold; the oldest messages go at the bound. 1 GiB.
    pub max_bytes: u64,
    /// How many servers hold each message, 1 to 5. 1; a cluster that shall survive the loss of a server needs 3.
    pub replicas: u8,
    /// Allow the relay to publish in atomic batches, which needs nats-server 2.12.1. Never taken back.
    pub atomic_batches: bool,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            max_age: Duration::from_secs(7 * 24 * 60 * 60),
            max_bytes: 1 << 30,
            replicas: 1,
            atomic_batches: false,
        }
    }
}

impl StreamSettings {
    /// Whether they can be wanted at all.
    ///
    /// # Errors
    ///
    /// [`StreamError::Settings`].
    pub fn check(&self) -> Result<(), StreamError> {
        let name = self.name.as_bytes();
        let letters = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > 255 || !name.iter().all(letters) {
            return Err(StreamError::Settings("a stream's name is letters, digits, - and _"));
        }
        if self.max_age < MAX_AGE_FLOOR {
            return Err(StreamError::Settings("a stream keeps messages for at least 24 hours"));
        }
        if !(1..=5).contains(&self.replicas) {
            return Err(StreamError::Settings("a stream has 1 to 5 replicas"));
        }
        if i64::try_from(self.max_bytes).map_or(true, |bytes| bytes < 1) {
            return Err(StreamError::Settings("a stream holds at least one byte"));
        }
        Ok(())
    }
}

/// What has to be done to a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// There is none.
    Create(Box<Config>),
    /// It differs in what may be changed.
    Update(Box<Config>),
    /// It is as it should be.
    Leave,
}

/// What is not as it was asked for, and was left so on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Left {
    /// It has more replicas than asked for. Fewer would make it less safe; that is for an operator to do.
    MoreReplicas {
        /// What the stream has.
        existing: usize,
        /// What was asked for.
        wanted: usize,
    },
    /// It holds at most so many messages, whatever their size.
    MessageLimit(i64),
}

/// Why a stream cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The settings are wrong.
    #[error("{0}")]
    Settings(&'static str),
    /// The broker cannot be reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The broker did not answer a request about the stream.
    #[error("the broker does not answer about the stream {0}")]
    Silent(String),
    /// There is a stream of this name that is another kind of stream. It is not made anew, because that would lose what it holds.
    #[error("the stream {stream} is not what is needed: its {setting} is {found}, and has to be {wanted}")]
    Mismatch {
        /// Its name.
        stream: String,
        /// What differs.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it has to be.
        wanted: &'static str,
    },
    /// The broker remembers ids for longer than the stream would keep messages, and so would refuse the whole change.
    #[error(
        "the stream {0} remembers ids for longer than messages are to be kept: raise the age of messages or lower its duplicate window"
    )]
    DuplicateWindow(String),
    /// The broker refused, with the code of its API.
    #[error("the broker refuses the stream {stream}: code {code}")]
    Refused {
        /// Its name.
        stream: String,
        /// What the broker calls it.
        code: u64,
    },
}

/// Makes a stream what it is to be, for who fills it. Any number of processes may do that at the same time. The stream is never made anew; but
/// where a limit is lower than before, the broker drops at once what is beyond it. Who only reads a stream uses [`require_stream`].
///
/// Returns what the broker says of the stream, and what was left as it was.
///
/// # Errors
///
/// [`StreamError`]. Only the answer "stream not found" counts as absence.
pub async fn ensure_stream(
    broker: &Broker,
    settings: &StreamSettings,
) -> Result<(Info, Vec<Left>), StreamError> {
    settings.check()?;
    let context = broker.jetstream().await?;
    // Once more when another process made it in between.
    for _ in 0..2 {
        let existing = info(broker, &settings.name).await?;
        let (plan, left) = plan(existing.as_ref().map(|info| &info.config), settings)?;
        let made = match (plan, existing) {
            (Plan::Leave, Some(info)) => return Ok((info, left)),
            (Plan::Create(config) | Plan::Update(config), None) => create(&context, *config).await,
            (Plan::Create(config) | Plan::Update(config), Some(_)) => context.update_stream(*config).await,
            (Plan::Leave, None) => return Err(StreamError::Silent(settings.name.clone())),
        };
        match made {
            Ok(info) => return Ok((info, left)),
            Err(error) => unless_made(&settings.name, &error)?,
        }
    }
    Err(StreamError::Silent(settings.name.clone()))
}

/// A stream as it is, for who reads it: made with these settings where there is none, and otherwise left alone. How much it holds, and for how
/// long, is for whoever fills it to say.
///
/// # Errors
///
/// [`StreamError`], among them [`StreamError::Mismatch`] for a stream of another kind. Only the answer "stream not found" counts as absence.
pub async fn require_stream(broker: &Broker, settings: &StreamSettings) -> Result<Info, StreamError> {
    settings.check()?;
    let context = broker.jetstream().await?;
    // Once more when another process made it in between.
    for _ in 0..2 {
        if let Some(info) = info(broker, &settings.name).await? {
            refuse_another_kind(&info.config)?;
            return Ok(info);
        }
        match create(&context, new_config(settings)).await {
            Ok(info) => return Ok(info),
            Err(error) => unless_made(&settings.name, &error)?,
        }
    }
    Err(StreamError::Silent(settings.name.clone()))
}

async fn create(context: &Context, config: Config) -> Result<Info, CreateStreamError> {
    Ok(context.create_stream(config).await?.cached_info().clone())
}

/// Fails, unless the error is that another process has made the stream in between.
fn unless_made(name: &str, error: &CreateStreamError) -> Result<(), StreamError> {
    match error.kind() {
        CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST => {
            Ok(())
        }
        CreateStreamErrorKind::JetStream(error) => Err(refused(name, error.error_code())),
        _ => Err(StreamError::Silent(name.to_owned())),
    }
}

/// What the broker says of a stream, asked of its leader; `None` when there is none.
///
/// # Errors
///
/// [`StreamError`] when the broker cannot be asked, or says something else.
pub async fn info(broker: &Broker, name: &str) -> Result<Option<Info>, StreamError> {
    match broker.jetstream().await?.get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                Ok(None)
            }
            GetStreamErrorKind::JetStream(error) => Err(refused(name, error.error_code())),
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                Err(StreamError::Settings("a stream's name is letters, digits, - and _"))
            }
            GetStreamErrorKind::Request => Err(StreamError::Silent(name.to_owned())),
        },
    }
}

fn refused(stream: &str, code: ErrorCode) -> StreamError {
    StreamError::Refused { stream: stream.to_owned(), code: code.0 }
}

/// Decides what has to be done to a stream so that it is as wanted.
///
/// # Errors
///
/// [`StreamError::Mismatch`] where only another stream would do, [`StreamError::DuplicateWindow`].
pub fn plan(existing: Option<&Config>, wanted: &StreamSettings) -> Result<(Plan, Vec<Left>), StreamError> {
    let Some(existing) = existing else {
        return Ok((Plan::Create(Box::new(new_config(wanted))), Vec::new()));
    };
    refuse_another_kind(existing)?;
    if existing.duplicate_window > wanted.max_age {
        return Err(StreamError::DuplicateWindow(existing.name.clone()));
    }
    let mut left = Vec::new();
    let replicas = usize::from(wanted.replicas);
    if existing.num_replicas > replicas {
        left.push(Left::MoreReplicas { existing: existing.num_replicas, wanted: replicas });
    }
    if existing.max_messages > 0 {
        left.push(Left::MessageLimit(existing.max_messages));
    }
    let config = Config {
        subjects: vec![ALL.to_owned()],
        discard: DiscardPolicy::Old,
        max_age: wanted.max_age,
        max_bytes: max_bytes(wanted),
        num_replicas: existing.num_replicas.max(replicas),
        allow_atomic_publish: existing.allow_atomic_publish || wanted.atomic_batches,
        ..existing.clone()
    };
    Ok(if config == *existing { (Plan::Leave, left) } else { (Plan::Update(Box::new(config)), left) })
}

/// A stream that is made.
fn new_config(wanted: &StreamSettings) -> Config {
    Config {
        name: wanted.name.clone(),
        subjects: vec![ALL.to_owned()],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        max_age: wanted.max_age,
        max_bytes: max_bytes(wanted),
        num_replicas: usize::from(wanted.replicas),
        allow_atomic_publish: wanted.atomic_batches,
        ..Config::default()
    }
}

fn max_bytes(wanted: &StreamSettings) -> i64 {
    i64::try_from(wanted.max_bytes).unwrap_or(i64::MAX)
}

/// What makes it another kind of stream: messages that go when they are read, that are kept in memory, that come from elsewhere, or that are
/// rewritten or thinned out on their way in.
fn refuse_another_kind(existing: &Config) -> Result<(), StreamError> {
    let mismatch = |setting, found: String, wanted| {
        Err(StreamError::Mismatch { stream: existing.name.clone(), setting, found, wanted })
    };
    if existing.retention != RetentionPolicy::Limits {
        return mismatch("retention", format!("{:?}", existing.retention).to_lowercase(), "limits");
    }
    if existing.storage != StorageType::File {
        return mismatch("storage", format!("{:?}", existing.storage).to_lowercase(), "file");
    }
    if existing.mirror.is_some() || existing.sources.as_ref().is_some_and(|sources| !sources.is_empty()) {
        return mismatch("origin", "another stream".to_owned(), "the relay");
    }
    if existing.sealed {
        return mismatch("state", "sealed".to_owned(), "open");
    }
    if existing.no_ack {
        return mismatch("acknowledgement of messages", "off".to_owned(), "on");
    }
    if existing.max_messages_per_subject > 0 {
        let found = existing.max_messages_per_subject.to_string();
        return mismatch("limit of messages per subject", found, "unlimited");
    }
    if existing.subject_transform.is_some() {
        return mismatch("subject transform", "set".to_owned(), "none");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn existing(change: impl FnOnce(&mut Config)) -> Config {
        let Ok((Plan::Create(config), _)) = plan(None, &StreamSettings::default()) else { panic!("made") };
        let mut config = *config;
        // As the broker fills in what was left out.
        config.duplicate_window = Duration::from_secs(120);
        config.max_messages = -1;
        config.max_messages_per_subject = -1;
        change(&mut config);
        config
    }

    #[test]
    fn one_that_is_as_it_should_be_is_left_alone() {
        let config = existing(|_| {});
        assert_eq!(plan(Some(&config), &StreamSettings::default()).unwrap(), (Plan::Leave, vec![]));
    }

    #[test]
    fn what_may_be_changed_is_and_the_rest_is_carried_through() {
        let before = existing(|config| {
            config.subjects = vec!["events.order.>".to_owned()];
            config.max_age = Duration::from_secs(3600);
            config.max_bytes = 7;
            config.discard = DiscardPolicy::New;
            config.description = Some("of the shop".to_owned());
            config.duplicate_window = Duration::from_secs(60);
            config.deny_delete = true;
        });
        let (Plan::Update(after), _) = plan(Some(&before), &StreamSettings::default()).unwrap() else {
            panic!("changed")
        };
        let expected = existing(|config| {
            config.description = Some("of the shop".to_owned());
            config.duplicate_window = Duration::from_secs(60);
            config.deny_delete = true;
        });
        assert_eq!(*after, expected);
    }

    #[test]
    fn replicas_are_raised_and_never_lowered() {
        let three = StreamSettings { replicas: 3, ..StreamSettings::default() };
        let (Plan::Update(raised), left) = plan(Some(&existing(|_| {})), &three).unwrap() else {
            panic!("changed")
        };
        assert_eq!((raised.num_replicas, left), (3, vec![]));
        let config = existing(|config| config.num_replicas = 3);
        let kept = plan(Some(&config), &StreamSettings::default()).unwrap();
        assert_eq!(kept, (Plan::Leave, vec![Left::MoreReplicas { existing: 3, wanted: 1 }]));
    }

    #[test]
    fn another_kind_of_stream_is_refused_with_what_differs() {
        let refusal = |change: fn(&mut Config)| {
            plan(Some(&existing(change)), &StreamSettings::default()).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(|config| config.retention = RetentionPolicy::WorkQueue),
            "the stream EVENTS is not what is needed: its retention is workqueue, and has to be limits"
        );
        assert!(
            refusal(|config| config.retention = RetentionPolicy::Interest).contains("retention is interest")
        );
        assert!(refusal(|config| config.storage = StorageType::Memory).contains("storage is memory"));
        assert!(refusal(|config| config.sealed = true).contains("sealed"));
        assert!(refusal(|config| config.max_messages_per_subject = 1).contains("per subject is 1"));
        assert!(refusal(|config| config.no_ack = true).contains("acknowledgement"));
        assert!(
            refusal(|config| config.duplicate_window = Duration::from_secs(30 * 86_400))
                .contains("duplicate window")
        );
    }

    #[test]
    fn settings_that_nobody_can_want_are_refused() {
        let refusal = |change: fn(&mut StreamSettings)| {
            let mut settings = StreamSettings::default();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(StreamSettings::default().check().is_ok());
        assert!(refusal(|it| it.max_age = MAX_AGE_FLOOR - Duration::from_secs(1)).contains("24 hours"));
        assert!(refusal(|it| it.replicas = 0).contains("replicas"));
        assert!(refusal(|it| it.replicas = 6).contains("replicas"));
        assert!(refusal(|it| it.name = "EV.ENTS".to_owned()).contains("name"));
        assert!(refusal(|it| it.max_bytes = 0).contains("byte"));
    }
}
