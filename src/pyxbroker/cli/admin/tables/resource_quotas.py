"""Commands about the resource quotas of bundles."""

from __future__ import annotations

from argparse import Namespace

from pyxbroker.cli.admin.rows import bundle, delete, flag, get, namespace, option, post

PATH = "/admin/v2/resource-quotas{/namespace}{/bundle}"
NAMESPACE = option("-n --namespace", "tenant/namespace of a bundle.", "{/namespace}", namespace)
BUNDLE = option("-b --bundle", "The bundle.", "{/bundle}", bundle)


def _check(values: Namespace) -> str:
    is_wrong = (values.namespace is None) != (values.bundle is None)
    return "--namespace and --bundle belong together." if is_wrong else ""


COMMANDS = {
    "get": get("Print a quota, or the default.", PATH, NAMESPACE, BUNDLE)._replace(check=_check),
    "set": post(
        "Set a quota, or the default.",
        PATH,
        NAMESPACE,
        BUNDLE,
        option("-mi --msgRateIn", "Messages in per second.", "msgRateIn", int, required=True),
        option("-mo --msgRateOut", "Messages out per second.", "msgRateOut", int, required=True),
        option("-bi --bandwidthIn", "Bytes in per second.", "bandwidthIn", int, required=True),
        option("-bo --bandwidthOut", "Bytes out per second.", "bandwidthOut", int, required=True),
        option("-mem --memory", "Memory in MiB.", "memory", int, required=True),
        flag("-d --dynamic", "The broker may recalculate it.", "dynamic"),
        check=_check,
    ),
    "reset-namespace-bundle-quota": delete(
        "Reset a quota to the default.",
        PATH,
        NAMESPACE._replace(is_required=True),
        BUNDLE._replace(is_required=True),
    ),
}
