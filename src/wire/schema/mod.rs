//! The schemas as data, for tests: the same parser as the build script's, and a sampler that
//! makes random valid messages of them. Nothing of this is in the product.

pub mod check;
pub mod model;
pub mod parse;
pub mod sample;

use std::path::Path;

/// All messages of the schema files beside this one.
pub fn load() -> Vec<model::Message> {
    // Cargo names the file from the root of the package, or by its whole path.
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join(file!());
    let folder = here.parent().expect("a file is in a folder");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the schema folder is readable")
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "hw"))
        .collect();
    files.sort();
    let mut messages = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a schema file is readable");
        messages.extend(
            parse::parse(&file.display().to_string(), &text).expect("the schemas are valid"),
        );
    }
    check::check(&messages).expect("the schemas are valid");
    messages
}
