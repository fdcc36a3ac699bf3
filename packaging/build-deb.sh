#!/bin/bash
# Lays out a Debian package of a wheel and of what it requires: build-deb.sh WHEEL FOLDER
#
#   /usr/bin/pyxbroker                         the command line
#   /usr/lib/pyxbroker/                        the wheel, and the libraries that Debian lacks
#   /usr/lib/systemd/system/pyxbroker.service
#   /usr/lib/sysusers.d/pyxbroker.conf         the user pyxbroker
#   /etc/pyxbroker/standalone.conf             a configuration file, kept when it was changed
#   /etc/default/pyxbroker                     settings and secrets of the host, as PULSAR_PREFIX_name=value
#   /var/lib/pyxbroker/                        the data; the unit creates it
#
# The Python that runs pip has to be the wheel's.
set -euo pipefail
wheel=$(realpath "$1")
target=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

name=$(basename "$wheel")
IFS=- read -r _ version tag _ <<< "$name"
minor=${tag#cp3}
case $name in
*x86_64*) architecture=amd64 ;;
*aarch64*) architecture=arm64 ;;
esac
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

library=$root/usr/lib/pyxbroker
"$python" -m pip install -q --no-compile --only-binary :all: --target "$library" "$wheel[auth,zookeeper]"
rm -rf "$library/bin"
install -D -m 644 "$here/pyxbroker.service" "$root/usr/lib/systemd/system/pyxbroker.service"
install -D -m 644 "$here/pyxbroker.sysusers" "$root/usr/lib/sysusers.d/pyxbroker.conf"
install -D -m 644 "$here/../conf/standalone.conf" "$root/etc/pyxbroker/standalone.conf"
install -D -m 644 "$here/../LICENSE" "$root/usr/share/doc/pyxbroker/copyright"
install -d "$root/etc/default" "$root/usr/bin" "$root/DEBIAN"
install -m 640 /dev/null "$root/etc/default/pyxbroker"
cat > "$root/usr/bin/pyxbroker" << END
#!/usr/bin/python3.$minor
import sys

sys.path.insert(0, "/usr/lib/pyxbroker")
from pyxbroker.__main__ import main

sys.exit(main())
END
chmod 755 "$root/usr/bin/pyxbroker"

cat > "$root/DEBIAN/control" << END
Package: pyxbroker
Version: $version
Architecture: $architecture
Maintainer: the authors of pyxbroker <pyxbroker@localhost>
Depends: python3.$minor, libc6 (>= 2.28), systemd
Installed-Size: $(du -sk "$root" | cut -f1)
Section: net
Priority: optional
Description: message broker that speaks Apache Pulsar's protocols
 One process has the broker, its storage and its metadata. Acknowledged messages
 are on disk.
END
printf '/etc/pyxbroker/standalone.conf\n/etc/default/pyxbroker\n' > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/postinst" << END
#!/bin/sh
set -e
if [ "\$1" = configure ]; then
    systemd-sysusers pyxbroker.conf
    python3.$minor -m compileall -q /usr/lib/pyxbroker || true
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl try-restart pyxbroker.service
    fi
fi
END
cat > "$root/DEBIAN/prerm" << 'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now pyxbroker.service
fi
find /usr/lib/pyxbroker -name __pycache__ -type d -prune -exec rm -rf {} +
END
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
dpkg-deb --root-owner-group -Zxz --build "$root" "$target" > /dev/null
echo "$target/pyxbroker_${version}_$architecture.deb"
