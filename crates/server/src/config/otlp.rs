//! Where spans go, and which are made: `--otlp-endpoint`, and the variables of OpenTelemetry.
//!
//! The variables are read here and not by OpenTelemetry's library, which leaves out values that it does not understand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duewheel::core::percent;

use super::ConfigError;

/// The path of traces at a collector, appended to an address that is for all kinds of data.
const PATH: &str = "/v1/traces";
/// The address of a collector if `OTEL_TRACES_EXPORTER` is `otlp` and nothing says where.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
/// The time limit of an export, if none is given: that of OpenTelemetry.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long spans are gathered, if nothing says so: that of OpenTelemetry.
const DEFAULT_DELAY: Duration = Duration::from_secs(5);
/// Spans that wait for their export, if nothing says so: as OpenTelemetry has it.
const DEFAULT_QUEUE: usize = 2_048;
/// Spans of one export, the same.
const DEFAULT_BATCH: usize = 512;
/// Spans may take as much memory as this many.
const MAX_QUEUE: usize = 1_000_000;
/// The longest time that a variable may say: an hour.
const MAX_MS: usize = 3_600_000;

/// Where spans go, and which are made. `Debug` leaves out the values of headers.
#[derive(Clone, PartialEq)]
pub struct OtlpSettings {
    /// The URL that spans are posted to.
    pub url: String,
    /// Headers of these requests, which are secrets.
    pub headers: Vec<(String, String)>,
    /// The time limit of one export.
    pub timeout: Duration,
    /// The authority of the collector's certificate; `None`: those of the web.
    pub ca: Option<PathBuf>,
    /// The client certificate for it.
    pub client: Option<ClientFiles>,
    /// Which spans are recorded.
    pub sampler: SamplerOption,
    /// Spans that wait for their export at most.
    pub queue: usize,
    /// Spans of one export at most.
    pub batch: usize,
    /// How long spans are gathered.
    pub delay: Duration,
    /// Resource attributes that the variables set; they win over those of the process itself.
    pub resource: Vec<(String, String)>,
}

/// The files of a client certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The certificate, in PEM.
    pub cert: PathBuf,
    /// The key of the certificate, in PEM.
    pub key: PathBuf,
}

/// Which spans are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SamplerOption {
    /// A span is recorded as its parent is, or, if it has none, as the messages that it links to; without either as
    /// this part of all traces.
    ByParent(f64),
    /// A part of all traces is recorded.
    Ratio(f64),
}

impl std::fmt::Debug for OtlpSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| &**name).collect();
        f.debug_struct("OtlpSettings")
            .field("url", &self.url)
            .field("headers", &names)
            .field("timeout", &self.timeout)
            .field("ca", &self.ca)
            .field("client", &self.client)
            .field("sampler", &self.sampler)
            .field("queue", &self.queue)
            .field("batch", &self.batch)
            .field("delay", &self.delay)
            .field("resource", &self.resource)
            .finish()
    }
}

/// The variables: those of this process, or, in tests, others.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<std::ffi::OsString>;

impl OtlpSettings {
    /// The settings in the option and the variables of this process; `None`: no spans are made.
    ///
    /// # Errors
    /// A value is not valid. The error names the variable, and repeats no header.
    pub fn from_environment(endpoint: Option<&str>) -> Result<Option<Self>, ConfigError> {
        OtlpSettings::of(endpoint, &|name| std::env::var_os(name))
    }

    /// The settings in the option and these variables; `None`: no spans are made.
    pub(crate) fn of(endpoint: Option<&str>, variables: Variables<'_>) -> Result<Option<Self>, ConfigError> {
        let from = VariableReader(variables);
        if from.word("OTEL_SDK_DISABLED")?.is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let exporter = from.word("OTEL_TRACES_EXPORTER")?;
        match exporter.as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => return Err(bad("OTEL_TRACES_EXPORTER", other, "must be otlp or none")),
        }
        let Some(url) = from.url(endpoint, exporter.is_some())? else { return Ok(None) };
        from.check_protocol()?;
        let queue = from.number("OTEL_BSP_MAX_QUEUE_SIZE", MAX_QUEUE)?.unwrap_or(DEFAULT_QUEUE);
        let batch = from.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", MAX_QUEUE)?.unwrap_or(DEFAULT_BATCH);
        Ok(Some(OtlpSettings {
            url,
            headers: from.headers()?,
            timeout: from.of_traces("TIMEOUT", |name| from.ms(name))?.unwrap_or(DEFAULT_TIMEOUT),
            ca: from.file("CERTIFICATE")?,
            client: match (from.file("CLIENT_CERTIFICATE")?, from.file("CLIENT_KEY")?) {
                (Some(cert), Some(key)) => Some(ClientFiles { cert, key }),
                (None, None) => None,
                (Some(_), None) => return Err(needs("CLIENT_CERTIFICATE", "CLIENT_KEY")),
                (None, Some(_)) => return Err(needs("CLIENT_KEY", "CLIENT_CERTIFICATE")),
            },
            sampler: from.sampler()?,
            queue,
            batch: batch.min(queue),
            delay: from.ms("OTEL_BSP_SCHEDULE_DELAY")?.unwrap_or(DEFAULT_DELAY),
            resource: from.resource()?,
        }))
    }
}

fn bad(name: &str, value: &str, what: &str) -> ConfigError {
    ConfigError::Value(format!("{name}={value}: {what}"))
}

fn needs(name: &str, other: &str) -> ConfigError {
    let (name, other) = (format!("OTEL_EXPORTER_OTLP_{name}"), format!("OTEL_EXPORTER_OTLP_{other}"));
    ConfigError::Value(format!("{name} needs {other}, too"))
}

/// Checks the address of a collector that an option or a variable gives.
pub(super) fn check_endpoint(name: &str, text: &str) -> Result<(), ConfigError> {
    let what = "must be http://HOST:PORT or https://HOST:PORT, perhaps with a path";
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let authority = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    if authority.is_some_and(|authority| authority.contains('@')) {
        let what = "must not have a user or a password; OTEL_EXPORTER_OTLP_HEADERS is the place for secrets";
        return Err(ConfigError::Value(format!("{name}: {what}")));
    }
    let uri = text.parse::<hyper::Uri>().ok();
    let is_good =
        authority.is_some() && uri.is_some_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    // A query may be a secret.
    let (shown, query) = text.split_at(text.find(['?', '#']).unwrap_or(text.len()));
    if is_good && query.is_empty() { Ok(()) } else { Err(bad(name, shown, what)) }
}

/// Reads variables. An empty one is as one that is not set, as OpenTelemetry has it.
struct VariableReader<'a>(Variables<'a>);

impl VariableReader<'_> {
    fn text(&self, name: &str) -> Result<Option<String>, ConfigError> {
        let Some(value) = (self.0)(name) else { return Ok(None) };
        let text = value.into_string().map_err(|_| ConfigError::Value(format!("{name}: is not UTF-8")))?;
        Ok((!text.trim().is_empty()).then_some(text))
    }

    fn word(&self, name: &str) -> Result<Option<String>, ConfigError> {
        Ok(self.text(name)?.map(|text| text.trim().to_owned()))
    }

    /// A variable for traces alone, or else the one for all kinds of data.
    fn of_traces<T>(
        &self,
        what: &str,
        read: impl Fn(&str) -> Result<Option<T>, ConfigError>,
    ) -> Result<Option<T>, ConfigError> {
        match read(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"))? {
            Some(value) => Ok(Some(value)),
            None => read(&format!("OTEL_EXPORTER_OTLP_{what}")),
        }
    }

    /// The URL that spans are posted to; the option wins.
    fn url(&self, option: Option<&str>, is_wanted: bool) -> Result<Option<String>, ConfigError> {
        let behind = |base: &str| format!("{}{PATH}", base.trim_end_matches('/'));
        if let Some(base) = option {
            check_endpoint("--otlp-endpoint", base)?;
            return Ok(Some(behind(base)));
        }
        let name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        if let Some(url) = self.word(name)? {
            // As it is: only the address for all kinds of data gets a path.
            check_endpoint(name, &url)?;
            return Ok(Some(url));
        }
        let name = "OTEL_EXPORTER_OTLP_ENDPOINT";
        if let Some(base) = self.word(name)? {
            check_endpoint(name, &base)?;
            return Ok(Some(behind(&base)));
        }
        Ok(is_wanted.then(|| behind(DEFAULT_ENDPOINT)))
    }

    fn check_protocol(&self) -> Result<(), ConfigError> {
        let one = |what: &str, good: &str| {
            self.of_traces(what, |name| match self.word(name)? {
                Some(word) if word != good => Err(bad(name, &word, &format!("only {good} is spoken here"))),
                word => Ok(word),
            })
        };
        one("PROTOCOL", "http/protobuf")?;
        one("COMPRESSION", "none")?;
        Ok(())
    }

    /// `name=value,name=value`, percent-encoded.
    fn pairs(&self, name: &str, is_secret: bool) -> Result<Option<Vec<(String, String)>>, ConfigError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let mut pairs = Vec::new();
        for (n, entry) in text.split(',').map(str::trim).enumerate().filter(|(_, entry)| !entry.is_empty()) {
            let bad = |what: &str| {
                let entry = if is_secret { String::new() } else { format!(" ({entry})") };
                ConfigError::Value(format!("{name}: entry {}{entry} {what}", n + 1))
            };
            let (key, value) = entry.split_once('=').ok_or_else(|| bad("must be name=value"))?;
            if key.trim().is_empty() {
                return Err(bad("has no name"));
            }
            let value = percent::decode(value.trim()).map_err(|_| bad("is not percent-encoded UTF-8"))?;
            pairs.push((key.trim().to_owned(), value.into_owned()));
        }
        Ok(Some(pairs))
    }

    fn headers(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let read = |name: &str| {
            let pairs = self.pairs(name, true)?;
            for (n, (header, value)) in pairs.iter().flatten().enumerate() {
                let is_good = hyper::header::HeaderName::try_from(header.as_str()).is_ok()
                    && hyper::header::HeaderValue::from_str(value).is_ok();
                if !is_good {
                    return Err(ConfigError::Value(format!("{name}: entry {} is no header", n + 1)));
                }
            }
            Ok(pairs)
        };
        Ok(self.of_traces("HEADERS", read)?.unwrap_or_default())
    }

    fn file(&self, what: &str) -> Result<Option<PathBuf>, ConfigError> {
        self.of_traces(what, |name| {
            let Some(file) = self.text(name)?.map(PathBuf::from) else { return Ok(None) };
            check_file(name, &file)?;
            Ok(Some(file))
        })
    }

    fn number(&self, name: &str, most: usize) -> Result<Option<usize>, ConfigError> {
        let Some(text) = self.word(name)? else { return Ok(None) };
        match text.parse() {
            Ok(n) if (1..=most).contains(&n) => Ok(Some(n)),
            Ok(_) | Err(_) => Err(bad(name, &text, &format!("must be a whole number from 1 to {most}"))),
        }
    }

    fn ms(&self, name: &str) -> Result<Option<Duration>, ConfigError> {
        let ms = self.number(name, MAX_MS)?.and_then(|ms| u64::try_from(ms).ok());
        Ok(ms.map(Duration::from_millis))
    }

    fn sampler(&self) -> Result<SamplerOption, ConfigError> {
        let name = "OTEL_TRACES_SAMPLER";
        let word = self.word(name)?;
        Ok(match word.as_deref() {
            None | Some("parentbased_always_on") => SamplerOption::ByParent(1.0),
            Some("parentbased_always_off") => SamplerOption::ByParent(0.0),
            Some("parentbased_traceidratio") => SamplerOption::ByParent(self.ratio()?),
            Some("always_on") => SamplerOption::Ratio(1.0),
            Some("always_off") => SamplerOption::Ratio(0.0),
            Some("traceidratio") => SamplerOption::Ratio(self.ratio()?),
            Some(other) => {
                let what =
                    "must be always_on, always_off or traceidratio, perhaps with parentbased_ before it";
                return Err(bad(name, other, what));
            }
        })
    }

    fn ratio(&self) -> Result<f64, ConfigError> {
        let name = "OTEL_TRACES_SAMPLER_ARG";
        let Some(text) = self.word(name)? else { return Ok(1.0) };
        match text.parse::<f64>() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
            Ok(_) | Err(_) => Err(bad(name, &text, "must be a number from 0 to 1")),
        }
    }

    /// The name of the service last, because it wins.
    fn resource(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let mut resource = self.pairs("OTEL_RESOURCE_ATTRIBUTES", false)?.unwrap_or_default();
        if let Some(service) = self.text("OTEL_SERVICE_NAME")? {
            resource.retain(|(name, _)| name != "service.name");
            resource.push(("service.name".to_owned(), service));
        }
        Ok(resource)
    }
}

fn check_file(name: &str, file: &Path) -> Result<(), ConfigError> {
    match std::fs::File::open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(ConfigError::Value(format!("{name}={}: {error}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    const AT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://10.0.0.7:4318");

    fn of(option: Option<&str>, all: &[(&str, &str)]) -> Result<Option<OtlpSettings>, String> {
        let lookup =
            |name: &str| all.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        OtlpSettings::of(option, &lookup).map_err(|error| error.to_string())
    }

    fn url(option: Option<&str>, all: &[(&str, &str)]) -> Option<String> {
        of(option, all).unwrap().map(|settings| settings.url)
    }

    #[test]
    fn spans_need_configured_endpoint() {
        assert_eq!(of(None, &[]), Ok(None));
        assert_eq!(
            of(None, &[("OTEL_SERVICE_NAME", "shop"), ("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]),
            Ok(None)
        );
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c.example/in/traces");
        assert_eq!(url(None, &[AT]).as_deref(), Some("http://10.0.0.7:4318/v1/traces"));
        assert_eq!(url(None, &[AT, traces]).as_deref(), Some("https://c.example/in/traces"));
        let option = Some("http://[::1]:1/base/");
        assert_eq!(url(option, &[AT, traces]).as_deref(), Some("http://[::1]:1/base/v1/traces"));
        let otlp = ("OTEL_TRACES_EXPORTER", "otlp");
        assert_eq!(url(None, &[otlp]).as_deref(), Some("http://localhost:4318/v1/traces"));
        assert_eq!(of(option, &[("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_SAMPLER", "x")]), Ok(None));
        assert_eq!(of(option, &[("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
    }

    #[test]
    fn the_variables_of_opentelemetry_count() {
        let plain = of(None, &[AT]).unwrap().unwrap();
        let expected = OtlpSettings {
            url: "http://10.0.0.7:4318/v1/traces".into(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
            ca: None,
            client: None,
            sampler: SamplerOption::ByParent(1.0),
            queue: 2_048,
            batch: 512,
            delay: Duration::from_secs(5),
            resource: Vec::new(),
        };
        assert_eq!(plain, expected);
        let all = of(
            None,
            &[
                AT,
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2, x-team = shop ,"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "9000"),
                ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "8000"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
                ("OTEL_BSP_SCHEDULE_DELAY", "50"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,deployment.environment.name=a%2Cb"),
                ("OTEL_SERVICE_NAME", "shop"),
            ],
        );
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let all = all.unwrap().unwrap();
        assert_eq!(all.headers, [pair("authorization", "Bearer hunter2"), pair("x-team", "shop")]);
        assert_eq!((all.timeout, all.delay), (Duration::from_secs(8), Duration::from_millis(50)));
        assert_eq!((all.queue, all.batch, all.sampler), (100, 100, SamplerOption::ByParent(0.25)));
        assert_eq!(all.resource, [pair("deployment.environment.name", "a,b"), pair("service.name", "shop")]);
        let shown = format!("{all:?}");
        assert!(shown.contains("authorization") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn otlp_error_names_variable_not_secret() {
        for (name, value, says) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "http://HOST:PORT"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "grpc://c:1", "http://HOST:PORT"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://", "http://HOST:PORT"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1/?key=hunter2", "http://HOST:PORT"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@c:1", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip", "none"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization hunter2", "name=value"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,c=hunter2%0a", "entry 2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=hunter2%zz", "percent-encoded"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "=hunter2", "no name"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "whole number"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "whole number"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/none/ca.pem", "No such file"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/dev/null", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
            ("OTEL_TRACES_SAMPLER", "xray", "always_on"),
            ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "from 1"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1", "from 1"),
            ("OTEL_RESOURCE_ATTRIBUTES", "shop", "name=value"),
        ] {
            let error = of(None, &[(name, value), AT]).unwrap_err();
            assert!(error.starts_with(name) && error.contains(says), "{name}={value}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        for ratio in ["1.5", "-0.1", "NaN", "half"] {
            let sampler = ("OTEL_TRACES_SAMPLER", "traceidratio");
            let error = of(None, &[AT, sampler, ("OTEL_TRACES_SAMPLER_ARG", ratio)]).unwrap_err();
            assert!(error.starts_with("OTEL_TRACES_SAMPLER_ARG"), "{ratio}: {error}");
        }
        let lookup = |name: &str| (name == AT.0).then(|| OsString::from_vec(b"http://\xff:1".to_vec()));
        let error = OtlpSettings::of(None, &lookup).unwrap_err().to_string();
        assert_eq!(error, "OTEL_EXPORTER_OTLP_ENDPOINT: is not UTF-8");
        let error = of(Some("collector"), &[]).unwrap_err();
        assert!(error.starts_with("--otlp-endpoint=collector: "), "{error}");
    }
}
