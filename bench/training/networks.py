"""The networks of bench/gpu: ResNet-18 and ResNet-50 (He et al., 2015; the stride of a bottleneck is in its 3x3 convolution), and a
tiny network for tests without a GPU."""
from torch import nn
from training.images import CLASSES


def convolution(inputs, outputs, size, stride=1):
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    """A residual block.  bottleneck: three convolutions, the last one with four times `width` channels; otherwise two convolutions."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        relu = nn.ReLU(inplace=True)
        if bottleneck:
            self.outputs = 4 * width
            layers = [*convolution(inputs, width, 1), relu, *convolution(width, width, 3, stride), relu,
                      *convolution(width, self.outputs, 1)]
        else:
            self.outputs = width
            layers = [*convolution(inputs, width, 3, stride), relu, *convolution(width, width, 3)]
        self.residual, self.relu = nn.Sequential(*layers), relu
        same = stride == 1 and inputs == self.outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, self.outputs, 1, stride))

    def forward(self, x):
        return self.relu(self.residual(x) + self.shortcut(x))


def resnet(depths, bottleneck):
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            layers.append(Block(channels, 64 << stage, 2 if stage > 0 and i == 0 else 1, bottleneck))
            channels = layers[-1].outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def tiny():
    return nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


NETWORKS = {"resnet18": lambda: resnet((2, 2, 2, 2), False), "resnet50": lambda: resnet((3, 4, 6, 3), True), "tiny": tiny}
