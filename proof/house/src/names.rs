//! Type names that two files define: such a name has two meanings.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;

use crate::source::{House, for_tests};

/// Names that every file may use: an idiom of the language, not a word of the field.
const IDIOMS: [&str; 2] = ["Error", "Options"];

/// Names that more than one file defines, with the files.
pub(crate) fn twice(house: &House) -> Vec<(String, Vec<String>)> {
    let many =
        all(house).into_iter().filter(|(name, files)| files.len() > 1 && !IDIOMS.contains(&name.as_str()));
    many.map(|(name, files)| (name, files.into_iter().collect())).collect()
}

/// The number of type names.
pub(crate) fn count(house: &House) -> usize {
    all(house).len()
}

fn all(house: &House) -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for part in &house.crates {
        for (module, file) in &part.files {
            let mut types = Types(Vec::new());
            types.visit_file(&file.syntax);
            let place = format!("{}/{}", part.name, module.join("/"));
            for name in types.0 {
                names.entry(name).or_default().insert(place.clone());
            }
        }
    }
    names
}

struct Types(Vec<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    // Types inside functions are not visible elsewhere.
    fn visit_block(&mut self, _: &'ast syn::Block) {}
}
