"""The data of the papers: read from a local folder in the standard formats, or downloaded, checked and cached."""

from .catalogue import Dataset, cifar10, cifar10_vgg, digits, fashion_mnist, load, mnist, names
from .download import RemoteFile, download

__all__ = [
    "Dataset",
    "RemoteFile",
    "cifar10",
    "cifar10_vgg",
    "digits",
    "download",
    "fashion_mnist",
    "load",
    "mnist",
    "names",
]
