//! Which user of the operating system the server runs as.
//!
//! Nobody but root has a choice here: started by an ordinary user, the server runs as that one.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Gid, Uid, User, geteuid};

use super::EmbeddedError;

/// The permission to enter a folder or to run a program, as in the last three bits of a mode.
pub(super) const ENTER: u32 = 0o1;
/// The permission to read.
pub(super) const READ: u32 = 0o4;

/// A user that is not ourselves and that the server runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    uid: u32,
    gid: u32,
}

impl Account {
    /// The user for a data folder that exists; `None` means ourselves.
    pub(super) fn for_data(folder: &Path) -> Result<Option<Account>, EmbeddedError> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let owner = folder.metadata().map_err(EmbeddedError::io("read", folder))?.uid();
        let account = if owner == 0 { service_account()? } else { owner_account(owner)? };
        Ok(Some(account))
    }

    /// Runs a command as this user, without any of our groups.
    pub(super) fn apply(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }

    /// Makes this user the owner of one file or folder. Links are not followed: the user could have put one
    /// there to be given a file of somebody else.
    pub(super) fn adopt(&self, path: &Path) -> Result<(), EmbeddedError> {
        lchown(path, Some(self.uid), Some(self.gid)).map_err(EmbeddedError::io("change the owner of", path))
    }

    /// The first folder on the way to `path`, or `path` itself, that denies this user what is wanted; the way
    /// itself only has to be entered. What does not exist yet denies nothing.
    pub(super) fn blocked_by(&self, path: &Path, want: u32) -> Option<PathBuf> {
        let mut way: Vec<&Path> = path.ancestors().collect();
        way.reverse();
        way.into_iter()
            .find(|step| {
                let want = if *step == path { want } else { ENTER };
                match step.metadata() {
                    Ok(found) => !self.may(found.uid(), found.gid(), found.permissions().mode(), want),
                    Err(error) => error.kind() != io::ErrorKind::NotFound,
                }
            })
            .map(Path::to_owned)
    }

    /// The classic permission check. It knows no access lists and no further groups, so it errs towards no.
    fn may(&self, owner: u32, group: u32, mode: u32, want: u32) -> bool {
        let bits = if owner == self.uid {
            mode >> 6
        } else if group == self.gid {
            mode >> 3
        } else {
            mode
        };
        bits & want == want
    }
}

impl From<User> for Account {
    fn from(user: User) -> Account {
        Account { name: user.name, uid: Uid::as_raw(user.uid), gid: Gid::as_raw(user.gid) }
    }
}

/// Whether a folder belongs to us or to root, so that nobody else decides what is in it.
pub(super) fn belongs_to_us_or_root(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

fn service_account() -> Result<Account, EmbeddedError> {
    for name in ["postgres", "nobody"] {
        if let Ok(Some(user)) = User::from_name(name) {
            return Ok(user.into());
        }
    }
    Err(EmbeddedError::NoAccount { why: "this machine has no user `postgres` and no user `nobody`".into() })
}

fn owner_account(uid: u32) -> Result<Account, EmbeddedError> {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => Ok(user.into()),
        // initdb insists on a name.
        _ => Err(EmbeddedError::NoAccount {
            why: format!("the data folder belongs to the user id {uid}, which has no name on this machine"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_bits_are_those_of_the_class_the_user_is_in() {
        let account = Account { name: "someone".into(), uid: 7, gid: 70 };
        let cases = [
            ((7, 70, 0o700, ENTER), true),
            ((7, 70, 0o077, ENTER), false),
            ((1, 70, 0o750, READ | ENTER), true),
            ((1, 70, 0o705, ENTER), false),
            ((1, 2, 0o705, READ | ENTER), true),
            ((1, 2, 0o701, ENTER), true),
            ((1, 2, 0o701, READ), false),
            ((0, 0, 0o700, ENTER), false),
        ];
        for ((owner, group, mode, want), allowed) in cases {
            assert_eq!(account.may(owner, group, mode, want), allowed, "{owner} {group} {mode:o} {want:o}");
        }
    }

    #[test]
    fn what_does_not_exist_blocks_nobody() {
        let account = Account { name: "someone".into(), uid: 7, gid: 70 };
        assert_eq!(account.blocked_by(Path::new("/no-such-folder-of-seqline/x"), ENTER), None);
    }
}
