//! What the fuzz targets check; [`checks`] is also what an ordinary test replays the committed corpus through.

pub mod checks;
