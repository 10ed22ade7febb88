//! The product's source, read and parsed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::limits::FLOORS;

/// All crates of the product.
pub(crate) struct House {
    pub(crate) crates: Vec<Crate>,
}

/// One crate.
pub(crate) struct Crate {
    pub(crate) name: String,
    /// The crates of the workspace that it depends on, not for its tests.
    pub(crate) needs: Vec<String>,
    /// By module path, without `crate`: `[]` is the root.
    pub(crate) files: BTreeMap<Vec<String>, File>,
}

/// One file, which is one module and those written inside it.
pub(crate) struct File {
    pub(crate) lines: usize,
    pub(crate) syntax: syn::File,
}

impl House {
    /// Reads the crates of the product below the root of the repository.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let crates = FLOORS.iter().map(|name| Crate::read(&root.join("crates").join(name), name));
        Ok(House { crates: crates.collect::<Result<_, _>>()? })
    }
}

impl Crate {
    fn read(folder: &Path, name: &str) -> Result<Self, String> {
        let manifest = folder.join("Cargo.toml");
        let text = read(&manifest)?;
        let mut needs = Vec::new();
        let mut counts = false;
        for line in text.lines() {
            if line.starts_with('[') {
                counts = line == "[dependencies]"
                    || line.starts_with("[target.") && line.ends_with(".dependencies]");
            } else if counts && let Some((key, _)) = line.split_once(['=', '.']) {
                needs.push(key.trim().to_owned());
            }
        }
        let needs = needs.iter().map(|need| {
            let name = need.strip_prefix("duewheel-").unwrap_or(need);
            name.strip_suffix("-lib").unwrap_or(name).to_owned()
        });
        let needs = needs.filter(|need| FLOORS.contains(&need.as_str())).collect();
        let mut files = BTreeMap::new();
        collect(&folder.join("src"), &[], &mut files)?;
        Ok(Crate { name: name.to_owned(), needs, files })
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn collect(folder: &Path, module: &[String], into: &mut BTreeMap<Vec<String>, File>) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        entries.push(entry.map_err(fail)?.path());
    }
    entries.sort();
    for path in entries {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let inside = || [module, std::slice::from_ref(&stem)].concat();
        // Tests may have loops of their own, which mislead no reader of the product.
        if stem == "tests" || stem.ends_with("_tests") || stem == "bin" {
            continue;
        }
        if path.is_dir() {
            collect(&path, &inside(), into)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = read(&path)?;
            let syntax = syn::parse_file(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            let is_folder = matches!(stem.as_str(), "mod" | "lib") || stem == "main" && module.is_empty();
            let name = if is_folder { module.to_vec() } else { inside() };
            let file = File { lines: text.lines().count(), syntax };
            // A crate with both has its modules below lib.rs.
            if stem != "main" || !into.contains_key(&name) {
                into.insert(name, file);
            }
        }
    }
    Ok(())
}

/// Whether an item exists for tests alone.
pub(crate) fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string().contains("test"))
    })
}
