//! The cache's file format: magic, lengths, checksum, a JSON header that states the identity in full, the cubin.

use super::compile::place;
use crate::engines::KernelSpec;
use frostgraph_kernels::sha256::{sha256, sha256_hex};
use serde::{Deserialize, Serialize};

/// File extension of entries.
pub(crate) const EXTENSION: &str = "fgcubin";
/// Eight bytes that no other file starts with; the last is the format's version.
const MAGIC: &[u8; 8] = b"FGCUBIN\x01";
/// Magic, header length, image length, digest of header and image.
const PREFIX: usize = 8 + 8 + 8 + 32;

/// Identity of a cubin, and its log. The key is the digest of everything but the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// `kernels/<source>:<entry> for <arch>`.
    pub kernel: String,
    /// Exact target.
    pub arch: String,
    /// Release of NVRTC and length of its library.
    pub nvrtc: String,
    /// Digest of the include closure.
    pub sources: String,
    /// Options, defines included.
    pub options: Vec<String>,
    /// Compiler log, without timings.
    #[serde(default)]
    pub log: String,
}

impl Header {
    pub(crate) fn new(spec: &KernelSpec, arch: &str, nvrtc: &str, sources: &str, options: &[String]) -> Header {
        Header {
            kernel: place(spec, arch),
            arch: arch.to_owned(),
            nvrtc: nvrtc.to_owned(),
            sources: sources.to_owned(),
            options: options.to_vec(),
            log: String::new(),
        }
    }

    /// Whether both describe the same compilation.
    pub(crate) fn same_kernel(&self, other: &Header) -> bool {
        let parts = |h: &Header| (h.kernel.clone(), h.arch.clone(), h.nvrtc.clone(), h.sources.clone(), h.options.clone());
        parts(self) == parts(other)
    }

    /// File name of the entry: 64 hex digits.
    pub(crate) fn key(&self) -> String {
        let mut bytes = Vec::new();
        let fixed = [&self.kernel, &self.arch, &self.nvrtc, &self.sources];
        for part in fixed.into_iter().chain(&self.options) {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        sha256_hex(&bytes)
    }
}

/// A whole entry.
pub(crate) fn encode(header: &Header, image: &[u8]) -> Vec<u8> {
    let json = serde_json::to_vec(header).unwrap_or_default();
    let mut body = json.clone();
    body.extend_from_slice(image);
    let mut out = Vec::with_capacity(PREFIX + body.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&(json.len() as u64).to_le_bytes());
    out.extend_from_slice(&(image.len() as u64).to_le_bytes());
    out.extend_from_slice(&sha256(&body));
    out.extend_from_slice(&body);
    out
}

/// Header and image of an entry, or why it is none.
pub(crate) fn decode(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
    let prefix = bytes.get(..PREFIX).ok_or("truncated")?;
    if &prefix[..8] != MAGIC {
        return Err("not a cubin entry of this version".into());
    }
    let length = |at: usize| {
        let mut le = [0; 8];
        le.copy_from_slice(&prefix[at..at + 8]);
        usize::try_from(u64::from_le_bytes(le)).unwrap_or(usize::MAX)
    };
    let (json, image) = (length(8), length(16));
    let body = &bytes[PREFIX..];
    if json.checked_add(image) != Some(body.len()) {
        return Err("truncated or with bytes after its end".into());
    }
    if prefix[24..] != sha256(body) {
        return Err("damaged: the checksum differs".into());
    }
    let header = serde_json::from_slice(&body[..json]).map_err(|e| format!("header: {e}"))?;
    Ok((header, &body[json..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let spec = KernelSpec { source: "a/b.cu", entry: "k", defines: vec![("N", 1)] };
        Header::new(&spec, "sm_90a", "13.0", "d1", &["-DN=1".into()])
    }

    #[test]
    fn round_trip() {
        let h = Header { log: "ptxas info".into(), ..header() };
        assert_eq!(decode(&encode(&h, b"image")), Ok((h.clone(), &b"image"[..])));
        assert!(h.same_kernel(&header()) && h.key() == header().key(), "the log is not part of the identity");
    }

    #[test]
    fn every_part_of_the_identity_changes_the_key() {
        let base = header();
        let others = [
            Header { kernel: "x".into(), ..base.clone() },
            Header { arch: "sm_120a".into(), ..base.clone() },
            Header { nvrtc: "13.1".into(), ..base.clone() },
            Header { sources: "d2".into(), ..base.clone() },
            Header { options: vec!["-DN=2".into()], ..base.clone() },
            Header { options: vec!["-DN".into(), "=1".into()], ..base.clone() },
        ];
        for other in others {
            assert_ne!(other.key(), base.key(), "{other:?}");
        }
    }

    #[test]
    fn any_flipped_bit_and_any_truncation_is_a_miss() {
        let good = encode(&header(), b"0123456789");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(decode(&bad).is_err(), "byte {at}");
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
        let mut long = good.clone();
        long.push(0);
        assert!(decode(&long).is_err());
    }
}
